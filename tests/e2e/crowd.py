"""Clients of everyday kinds that ask all the time: OpenAI's own and a gRPC channel; if they retry, as docs/protocol.md
says. What they get is compared with what an undisturbed stack answers.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
import openai

from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub

REPOSITORY = Path(__file__).parents[2]
NUM_PROMPTS = 3
MAX_TOKENS = 32
CALL_TIMEOUT_S = 180
NUM_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client got, and the longest time in which nothing came."""

    prompt: str
    text: str
    num_tokens: int
    longest_wait_s: float
    ended_s: float = field(default_factory=time.monotonic)


Ask = Callable[[str], Answer]
T = TypeVar("T")


class Crowd:
    """Asks in threads until it is stopped; whatever goes wrong in one is kept for the test."""

    def __init__(self, kinds: dict[str, Ask]) -> None:
        self.answers: list[Answer] = []
        self.failures: list[str] = []
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_all_the_time, args=(ask, f"{kind} {number}"), daemon=True)
            for kind, ask in kinds.items()
            for number in range(NUM_OF_A_KIND)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(CALL_TIMEOUT_S)
            assert not thread.is_alive(), "a client never got its answer"

    def since(self, began_s: float) -> list[Answer]:
        """Answers that ended after this time."""
        return [answer for answer in list(self.answers) if answer.ended_s > began_s]

    def _ask_all_the_time(self, ask: Ask, name: str) -> None:
        for number in range(10**6):
            if self._stopped.is_set():
                return
            try:
                self.answers.append(ask(prompt(number + len(name))))
            except (openai.OpenAIError, grpc.RpcError) as failed:
                self.failures.append(f"{name}: {failed!r}")


def undisturbed_answers(kinds: dict[str, Ask]) -> dict[str, str]:
    """What each prompt is answered, before anything happens; the same over both protocols."""
    prompts = sorted({prompt(number) for number in range(2 * NUM_PROMPTS)})
    with ThreadPoolExecutor(len(prompts)) as pool:
        over_http, over_grpc = ([answer.text for answer in pool.map(ask, prompts)] for ask in kinds.values())
    assert over_http == over_grpc
    return dict(zip(prompts, over_http, strict=True))


def prompt(number: int) -> str:
    """One of a few, some of which begin alike."""
    return f"Once upon a time there were {number % NUM_PROMPTS} bears who lived in a house in the woods. " * (
        1 + number % 2
    )


@contextmanager
def kinds_of_clients(http_port: int, grpc_port: int, *, num_retries: int) -> Iterator[dict[str, Ask]]:
    """How to ask, by the client's kind. OpenAI's retries are at most 8 s apart, or when the server says; gRPC's are as
    protos/service_config.json says, and it waits for a server. With `num_retries` 0 nobody tries twice.
    """
    url = f"http://127.0.0.1:{http_port}/v1"
    retries = [("grpc.service_config", (REPOSITORY / "protos/service_config.json").read_text())]
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=num_retries, timeout=CALL_TIMEOUT_S) as client,
        grpc.insecure_channel(f"dns:///127.0.0.1:{grpc_port}", options=retries if num_retries else []) as channel,
    ):
        model = client.models.list().data[0].id
        stub = InferenceServiceStub(channel)
        yield {
            "http": lambda text: _over_http(client, model, text),
            "grpc": lambda text: _over_grpc(stub, text, is_patient=num_retries > 0),
        }


def _over_http(client: openai.OpenAI, model: str, text: str) -> Answer:
    stream = client.completions.create(
        model=model,
        prompt=text,
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    timed = _Timed()
    chunks = list(timed.each(stream))
    usage = chunks[-1].usage
    return Answer(
        prompt=text,
        text="".join(choice.text for chunk in chunks for choice in chunk.choices),
        num_tokens=usage.completion_tokens if usage is not None else 0,
        longest_wait_s=timed.longest_s,
    )


def _over_grpc(stub: InferenceServiceStub, text: str, *, is_patient: bool) -> Answer:
    request = pb.GenerateRequest(
        text=text,
        sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StopParams(max_tokens=MAX_TOKENS, ignore_eos=True),
    )
    timed = _Timed()
    events = list(timed.each(stub.Generate(request, timeout=CALL_TIMEOUT_S, wait_for_ready=is_patient)))
    return Answer(
        prompt=text,
        text="".join(event.chunk.text for event in events),
        num_tokens=events[-1].finished.usage.completion_tokens,
        longest_wait_s=timed.longest_s,
    )


class _Timed:
    """Looks at the clock whenever something comes; the wait for the first thing counts from the making of this."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s = time.monotonic()

    def each(self, things: Iterable[T]) -> Iterator[T]:
        for thing in things:
            now_s = time.monotonic()
            self.longest_s, self._last_s = max(self.longest_s, now_s - self._last_s), now_s
            yield thing
