"""The gateway's session as it is, without the gateway around it: submits token ids and keeps what comes back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway import scheduler_session
from gateway.core.submission import (
    Admitted,
    Ended,
    Rejected,
    ResolvedSampling,
    ResolvedStopping,
    SchedulerState,
    Submission,
    Tokens,
)
from gateway.inbox import Inbox
from gateway.scheduler_session import SchedulerSession

SAMPLING = ResolvedSampling(
    temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0,
    repetition_penalty=1.0, seed=1, logit_bias={}, num_logprobs=None,
)  # fmt: skip


class Answer:
    """What one request got."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.inbox = Inbox()
        self.ended: Ended | Rejected | None = None

    async def end(self) -> Ended | Rejected:
        """Take what comes until there is no more."""
        while self.ended is None:
            for delivery in await self.inbox.take(timeout_s=30):
                match delivery.update:
                    case Tokens() as tokens:
                        self.token_ids += tokens.token_ids
                    case Ended() | Rejected() as ended:
                        assert self.ended is None, "it ended twice"
                        self.ended = ended
                    case Admitted():
                        pass
        return self.ended


class GatewaySide:
    """One gateway incarnation."""

    def __init__(self) -> None:
        self.session: SchedulerSession
        self.states: list[SchedulerState] = []
        self._heard = asyncio.Event()

    def hear(self, state: SchedulerState) -> None:
        self.states.append(state)
        self._heard.set()

    async def until_ready(self, is_ready: bool = True) -> None:
        async with asyncio.timeout(20):
            while not self.states or self.states[-1].is_ready != is_ready:
                self._heard.clear()
                await self._heard.wait()

    def submit(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        answer = Answer()
        stopping = ResolvedStopping(
            max_tokens=max_tokens, min_tokens=0, ignore_eos=True, eos_token_ids=(), stop_token_ids=()
        )
        self.session.submit(
            Submission(
                prompt_token_ids=prompt, sampling=SAMPLING, stopping=stopping, client_request_id="", tenant="",
                priority=0, deadline_at_s=None, cache_salt="", cache_bypass=False, trace_context=b"",
            ),
            answer.inbox,
        )  # fmt: skip
        return answer


@asynccontextmanager
async def dialling(address: str) -> AsyncIterator[GatewaySide]:
    """A gateway that dials `address` while the block runs."""
    side = GatewaySide()
    async with scheduler_session.connected(
        address, gateway_id="g1", tokenizer_digest=b"", on_state=side.hear
    ) as session:
        side.session = session
        yield side
