"""An engine without an HTTP server, asked by lines of JSON over its standard input and output.

It gets {"id", "prompt", "num_tokens"} and answers {"id", "num_tokens", "is_finished"} as often as tokens are made.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.cli.bench.figures import Sample


@dataclass(slots=True, kw_only=True)
class _Open:
    """A request that is not answered in full."""

    sample: Sample
    on_text: Callable[[], None]
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class LineTarget:
    """One process; `read` must run as long as requests are open."""

    def __init__(self, told: asyncio.StreamReader, ask: asyncio.StreamWriter) -> None:
        self._told = told
        self._ask = ask
        self._ids = itertools.count()
        self._open: dict[int, _Open] = {}

    async def generate(
        self, prompt: Sequence[int], num_tokens: int, *, on_text: Callable[[], None] = lambda: None
    ) -> Sample:
        request_id = next(self._ids)
        line = json.dumps({"id": request_id, "prompt": list(prompt), "num_tokens": num_tokens}) + "\n"
        sample = Sample(sent_at=time.perf_counter(), num_prompt_tokens=len(prompt))
        request = self._open[request_id] = _Open(sample=sample, on_text=on_text)
        self._ask.write(line.encode())
        await request.ended.wait()
        return sample

    async def read(self) -> None:
        """Hand every answer to its request, until the engine ends; what is open then has failed."""
        async for line in self._told:
            now = time.perf_counter()
            answer = json.loads(line)
            request = self._open[answer["id"]]
            request.sample.num_output_tokens += answer["num_tokens"]
            request.sample.arrived_at.append(now)
            request.on_text()
            if answer["is_finished"]:
                del self._open[answer["id"]]
                request.ended.set()
        for request in self._open.values():
            request.sample.error = "the engine ended"
            request.ended.set()
