"""A scheduler that keeps the Session contract and needs no worker: every answer repeats its prompt, token by token."""

import asyncio
import itertools
import time
from array import array
from collections.abc import AsyncIterator
from typing import Any

from octavo.common.v1.common_pb2 import TokenLogprob
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceServicer


class FakeScheduler(SchedulerServiceServicer):
    """Gives each live request one token per step. Tests read what it was told and set what it does."""

    def __init__(self) -> None:
        self.hellos: list[pb.SessionHello] = []
        self.submits: list[pb.Submit] = []
        self.cancels: list[pb.Cancel] = []
        self.refusal: pb.Failure | None = None  # given to every request, if set
        self.failure: pb.Failure | None = None  # ends every request after its first token, if set
        self.state = pb.ServingState(ready=True, model={"name": "tiny", "max_model_len": 4096, "vocab_size": 512})
        self.step_s = 0.001
        self.is_cut = asyncio.Event()  # ends the stream, once
        self.beat_s = 1.0  # between two signs of life
        self.is_leaving = False  # says so, and looks at nothing any more
        self.num_received = 0  # on this stream
        self._live: dict[int, tuple[pb.Submit, int]] = {}  # request -> (as submitted, tokens generated)
        self._events = pb.Events()

    def num_generated(self, num: int) -> int:
        """Tokens that a live request has."""
        return self._live[num][1] if num in self._live else 0

    async def Session(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        self._live.clear()
        listener = asyncio.create_task(self._listen(requests))
        context.add_done_callback(lambda _: listener.cancel())
        seqs = itertools.count(1)
        await context.write(pb.SessionResponse(state=self.state, seq=next(seqs)))
        beaten_s = time.monotonic()
        while not self.is_cut.is_set():
            if not self.is_leaving:
                self._step()
            elif not self.state.draining:
                self.state = pb.ServingState(draining=True, reason="draining", model=self.state.model)
                await context.write(pb.SessionResponse(state=self.state, seq=next(seqs)))
            if self._events.ByteSize():
                events, self._events = self._events, pb.Events()
                await context.write(pb.SessionResponse(events=events, seq=next(seqs)))
            if time.monotonic() - beaten_s >= self.beat_s:
                beaten_s = time.monotonic()
                beat = pb.Beat(last_received_seq=self.num_received)
                await context.write(pb.SessionResponse(beat=beat, seq=next(seqs)))
            await asyncio.sleep(self.step_s)
        self.is_cut.clear()

    async def _listen(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        async for message in requests:
            self.num_received = message.seq
            match message.WhichOneof("message"):
                case "hello":
                    self.hellos.append(message.hello)
                case "submit":
                    self.submits.append(message.submit)
                    self._take(message.submit.request_num, message.submit)
                case "cancel":
                    self.cancels.append(message.cancel)
                    if message.cancel.request_num in self._live:
                        self._finish(message.cancel.request_num, pb.FINISH_REASON_CANCELLED)

    def _take(self, num: int, submit: pb.Submit) -> None:
        if self.is_leaving:
            return
        if self.refusal is not None:
            self._events.rejected.add(request_num=num, failure=self.refusal)
            return
        self._events.admitted.add(request_num=num, num_cached_tokens=3)
        self._live[num] = submit, len(submit.output_token_ids) // 4

    def _step(self) -> None:
        for num, (submit, position) in list(self._live.items()):
            prompt, stopping = array("I", submit.prompt_token_ids), submit.stopping
            token_id = prompt[position % len(prompt)]
            self._live[num] = (submit, position + 1)
            self._events.request_nums += array("I", [num]).tobytes()
            self._events.token_ids += array("I", [token_id]).tobytes()
            has_logprobs = submit.sampling.HasField("num_logprobs")
            self._events.num_logprobs += array("I", [has_logprobs]).tobytes()
            if has_logprobs:
                sampled = TokenLogprob(token_id=token_id, logprob=-0.5)
                self._events.logprobs.add(sampled=sampled, top=[sampled] * submit.sampling.num_logprobs)
            if self.failure is not None:
                self._finish(num, pb.FINISH_REASON_ERROR, failure=self.failure)
            elif not stopping.ignore_eos and token_id in {*stopping.stop_token_ids, *stopping.eos_token_ids}:
                self._finish(num, pb.FINISH_REASON_STOP, stop_token_id=token_id)
            elif position + 1 == stopping.max_tokens:
                self._finish(num, pb.FINISH_REASON_LENGTH)

    def _finish(self, num: int, reason: Any, **more: Any) -> None:
        del self._live[num]
        self._events.finished.add(request_num=num, reason=reason, figures=pb.RequestFigures(num_preemptions=2), **more)
