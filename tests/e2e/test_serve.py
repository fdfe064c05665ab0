"""`octavo serve` as a whole: what dies comes back, and nothing is left behind."""

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
from tests.e2e.stack import Stack
from tests.octavo.cli.program import octavo
from tests.octavo.cli.scene import is_alive

NUM_TOKENS = 200
READY_LIMIT_S = 90.0  # for a service to come back, a busy machine included


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[tuple[Stack, ServeState]]:
    """A server of its own; however the test ends it, it is gone afterwards."""
    stack = Stack(folder, *flags)
    try:
        stack.__enter__()
        (state,) = runtime.running(stack.environ)
        yield stack, state
    finally:
        if stack.process is not None and stack.process.poll() is None:
            stack.process.kill()
            stack.process.wait()
        shutil.rmtree(stack._runtime)


def are_gone(state: ServeState) -> bool:
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in state.pids.values()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def stream(stack: Stack, lines: list[str], begun: threading.Event) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
    body |= {"model": "", "stream_options": {"include_usage": True}, "return_token_ids": True}
    body["model"] = httpx.get(f"{stack.url}/v1/models").json()["data"][0]["id"]
    with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=READY_LIMIT_S) as answer:
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


def completion(stack: Stack) -> list[int]:
    """Token ids of the answer that `stream` asks for, once the server is ready to give it."""
    deadline = time.monotonic() + READY_LIMIT_S
    while not stack.is_ready():
        assert time.monotonic() < deadline, f"not ready again:\n{stack.log.read_text()[-4000:]}"
        time.sleep(0.1)
    lines: list[str] = []
    stream(stack, lines, threading.Event())
    return ids(lines)


def ids(lines: list[str]) -> list[int]:
    """Token ids of a whole stream."""
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "data: [DONE]" in lines, f"the stream broke off: {lines[-3:]}"
    return [token_id for event in events for choice in event["choices"] for token_id in choice.get("token_ids") or ()]


def until_restarted(stack: Stack, name: str, pid: int) -> ServeState:
    """What the server says of itself once another process is in the place of `pid`."""
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        (state,) = runtime.running(stack.environ)
        if state.pids.get(name, pid) != pid:
            return state
        assert time.monotonic() < deadline, f"{name} was not started again:\n{stack.log.read_text()[-4000:]}"
        time.sleep(0.05)


@pytest.mark.slow
def test_death_of_each_service_is_told_and_mended_and_streams_go_on(tmp_path: Path):
    with served(tmp_path) as (stack, first):
        state = first
        undisturbed = completion(stack)
        for victim in ("redis", "kvcache", "scheduler", "worker-0"):
            lines: list[str] = []
            begun = threading.Event()
            client = threading.Thread(target=stream, args=(stack, lines, begun))
            client.start()
            assert begun.wait(READY_LIMIT_S)
            os.kill(state.pids[victim], signal.SIGKILL)
            client.join()
            assert ids(lines) == undisturbed, victim
            state = until_restarted(stack, victim, state.pids[victim])
            assert f"{victim:10} ended with signal SIGKILL; restarting at once (1 of 10 within" in stack.log.read_text()
        os.kill(state.pids["gateway"], signal.SIGKILL)
        state = until_restarted(stack, "gateway", state.pids["gateway"])
        assert completion(stack) == undisturbed
        assert set(state.num_restarts.values()) == {1}
        assert len(state.num_restarts) == len(state.pids) == 5
        assert stack.stop() == 0
        assert are_gone(state)


@pytest.mark.slow
async def test_restart_says_what_it_does_not_know(stack: Stack):
    environ = {"XDG_RUNTIME_DIR": str(stack._runtime)}
    done = await octavo("restart", "workr", environ=environ)
    assert (done.status, done.out) == (1, "")
    assert "octavo restart: no service workr; did you mean worker?" in done.err


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
