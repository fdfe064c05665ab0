"""`octavo bench` against real servers of both protocols, by the program itself."""

import json
from pathlib import Path

import pytest

from tests.fakes import inference_server, openai_server
from tests.fakes.inference_server import InferenceServer
from tests.octavo.cli.program import octavo

FLAGS = ["--num-prompts", "6", "--input-len", "20", "--output-len", "5"]


async def test_http_target_is_measured_and_its_counters_give_the_hit_rate(tmp_path: Path):
    with openai_server.running() as server:
        done = await octavo(
            "bench", "--url", server.url, *FLAGS, "--concurrency", "1,3", "--prefix-len", "8", "--json",
            str(tmp_path / "out.json"),
        )  # fmt: skip
    assert done.status == 0, done.err
    written = json.loads((tmp_path / "out.json").read_text())
    assert [run["load"] for run in written["runs"]] == ["1 at once", "3 at once"]
    for run in written["runs"]:
        assert (run["num_completed"], run["num_failed"]) == (6, 0)
        assert (run["num_prompt_tokens"], run["num_output_tokens"]) == (120, 30)
        assert run["hit_rate"] == 0.25
        assert run["ttft_ms"]["median"] < run["e2el_ms"]["median"]
    assert all(body["ignore_eos"] and len(body["prompt"]) == 20 for body in server.bodies[1:])


async def test_no_prompt_is_sent_twice():
    with openai_server.running() as server:
        await octavo("bench", "--url", server.url, *FLAGS, "--concurrency", "1", "3")
    prompts = [tuple(body["prompt"]) for body in server.bodies[1:]]
    assert len(prompts) == len(set(prompts)) == 13  # one warm-up


async def test_grpc_target_is_measured_and_usage_gives_the_hit_rate(tmp_path: Path):
    server = InferenceServer()
    async with inference_server.running(server) as target:
        done = await octavo(
            "bench", "--target", target, *FLAGS, "--request-rate", "200", "--goodput", "ttft:10000", "--json",
            str(tmp_path / "out.json"),
        )  # fmt: skip
    assert done.status == 0, done.err
    (run,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert (run["num_completed"], run["num_output_tokens"], run["load"]) == (6, 30, "200 requests/s")
    assert run["hit_rate"] == pytest.approx(16 / 20)
    assert run["goodput_per_s"] == pytest.approx(run["requests_per_s"])
    assert "TTFT p99" in done.out


async def test_refused_requests_fail_the_bench():
    async with inference_server.running(InferenceServer()) as target:
        done = await octavo("bench", "--target", target, *FLAGS, "--model", "other", "--num-warmups", "0")
    assert done.status == 1
    assert "there is no model other" in done.out
    assert "0 / 6" in done.out


async def test_prefix_longer_than_the_prompt_is_refused():
    with openai_server.running() as server:
        done = await octavo("bench", "--url", server.url, *FLAGS, "--prefix-len", "20")
    assert done.status == 1
    assert "must be shorter than the prompt" in done.err


@pytest.mark.parametrize(("flag", "value", "message"), [
    ("--concurrency", "0", "--concurrency: wants an int above 0, got 0"),
    ("--goodput", "speed:1", "--goodput: wants one of ttft, tpot, e2el"),
    ("--request-rate", "-1", "--request-rate: "),
])  # fmt: skip
async def test_bad_value_is_one_line(flag: str, value: str, message: str):
    done = await octavo("bench", f"{flag}={value}")
    assert done.status == 2
    assert done.err.startswith(f"octavo bench: {message}")
    assert done.err.count("\n") == 1
