"""`octavo serve` as a whole: an answer is finished before it stops, a death is told, and nothing is left behind."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from octavo.cli import runtime
from octavo.cli.runtime import ServeState
from tests.e2e.stack import STOP_LIMIT_S, Stack
from tests.octavo.cli.program import octavo

NUM_TOKENS = 200


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[tuple[Stack, ServeState]]:
    """A server of its own; however the test ends it, it is gone afterwards."""
    stack = Stack(folder, *flags)
    try:
        stack.__enter__()
        (state,) = runtime.running({"XDG_RUNTIME_DIR": str(stack._runtime)})
        yield stack, state
    finally:
        if stack.process is not None and stack.process.poll() is None:
            stack.process.kill()
            stack.process.wait()
        shutil.rmtree(stack._runtime)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def are_gone(state: ServeState) -> bool:
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in state.pids.values()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def stream(stack: Stack, lines: list[str], begun: threading.Event) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
    body |= {"model": "", "stream_options": {"include_usage": True}}
    body["model"] = httpx.get(f"{stack.url}/v1/models").json()["data"][0]["id"]
    with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            begun.set()


@pytest.mark.slow
def test_running_answer_is_finished_before_the_server_stops(tmp_path: Path):
    lines: list[str] = []
    begun = threading.Event()
    with served(tmp_path) as (stack, state):
        client = threading.Thread(target=stream, args=(stack, lines, begun))
        client.start()
        assert begun.wait(30)
        assert stack.stop() == 0
        client.join()
        assert list((stack._runtime / "octavo").iterdir()) == []
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens"] == NUM_TOKENS
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
    assert are_gone(state)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["gateway", "scheduler", "worker-0", "kvcache", "redis"])
def test_death_of_a_service_is_told_and_ends_all(tmp_path: Path, victim: str):
    with served(tmp_path) as (stack, state):
        os.kill(state.pids[victim], signal.SIGKILL)
        assert stack.process is not None
        assert stack.process.wait(STOP_LIMIT_S) == 1
    assert f"{victim:10} ended unexpectedly with signal SIGKILL" in stack.log.read_text()
    assert are_gone(state)


@pytest.mark.slow
def test_nothing_survives_the_servers_own_death(tmp_path: Path):
    with served(tmp_path) as (stack, state):
        assert stack.process is not None
        stack.process.kill()
        stack.process.wait()
        assert are_gone(state)


async def test_status_shows_every_process_and_worker(stack: Stack):
    environ = {"XDG_RUNTIME_DIR": str(stack._runtime), "COLUMNS": "120"}
    done = await octavo("status", "--url", stack.url, environ=environ)
    assert done.status == 0, done.err
    for name in ("gateway", "scheduler", "kvcache", "redis", "worker-0", "blocks used"):
        assert name in done.out


async def test_generate_and_chat_and_bench_find_a_real_server(stack: Stack):
    answer = await octavo("generate", "What is the capital of France?", "--target", stack.target, "--temperature", "0")
    assert "Paris" in answer.out
    chat = await octavo("chat", "--url", stack.url, "--max-tokens", "4", "--temperature", "0", typed="Hello\n")
    assert (chat.status, chat.err) == (0, "")
    flags = ["--concurrency", "2", "--num-prompts", "4", "--input-len", "20", "--output-len", "8"]
    for server in (["--url", stack.url], ["--target", stack.target]):
        bench = await octavo("bench", *server, *flags)
        assert bench.status == 0, bench.out + bench.err
        assert "4 / 0" in bench.out
