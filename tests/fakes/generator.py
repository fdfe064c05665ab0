"""A Generator without model and scheduler: answers by script, under the real rules. One byte of prompt is one token."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from gateway.core import generation as g
from gateway.core import limits
from gateway.generator import Generator

Events = AsyncGenerator[g.GenerationEvent, None]
ENTRY = g.ModelEntry(name="m", aliases=("alias",), max_model_len=64, is_ready=True, created_s=7.0)
READY = g.ServingState(is_ready=True, reason="", num_blocks=100, block_size=16)
TIMING = g.Timing(queue_s=0.1, prefill_s=0.2, decode_s=0.3, ttft_s=0.3, e2e_s=0.6, num_preemptions=1)


@dataclass(slots=True, kw_only=True)
class FakeGenerator(Generator):
    """Says `texts`, one token each, `{prompt}` being the prompt; raises `error` instead of text `error_at`."""

    texts: tuple[str, ...] = ("Hello", " world")
    stop_sequence: str | None = None
    error: Exception | None = None
    error_at: int = -1  # -1: before Started
    delay_s: float = 0.0  # before Started and before each text
    serving_state: g.ServingState = READY
    calls: list[tuple[g.GenerationRequest, object]] = field(default_factory=list)  # allowed, with their trace parents
    num_cancelled: int = 0

    async def generate(self, request: g.GenerationRequest, *, trace_parent: object = None) -> Events:
        self.model(request.model)
        limits.check(request, limits.RequestLimits(vocab_size=256, max_choices=128, max_stop_sequences=32))
        self.calls.append((request, trace_parent))
        size, most = len(bytes_of(request.prompt)), request.stopping.max_tokens
        texts = self.texts[: limits.max_new_tokens(size, requested=most, max_model_len=ENTRY.max_model_len)]
        last = len(texts) - 1, g.FinishReason.LENGTH if len(texts) < len(self.texts) else g.FinishReason.STOP
        try:
            for at in range(-1, len(texts)):
                await asyncio.sleep(self.delay_s)
                if self.error is not None and self.error_at == at:
                    raise self.error
                if at < 0:
                    yield g.Started(request_id="r", model="m", num_prompt_tokens=size, num_cached_tokens=1, created_s=7)
                for index in range(request.n if at >= 0 else 0):
                    yield self._chunk(request, index, texts[at], last[1] if at == last[0] else None)
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        usage = g.Usage(num_prompt_tokens=size, num_completion_tokens=len(texts) * request.n, num_cached_tokens=1)
        yield g.Finished(usage=usage, timing=TIMING)

    def _chunk(self, request: g.GenerationRequest, i: int, text: str, end: g.FinishReason | None) -> g.TextChunk:
        text, stop = text.replace("{prompt}", bytes_of(request.prompt).decode()), self.stop_sequence if end else None
        said = g.TokenLogprob(token_id=65, token=text.encode(), logprob=-0.5)
        half = g.TokenLogprob(token_id=66, token=b"\xe2\x82", logprob=float("-inf"))  # of a character
        told = () if request.num_logprobs is None else (g.PositionLogprobs(sampled=said, top=(said, half)),)
        return g.TextChunk(index=i, text=text, token_ids=(65,), logprobs=told, finish_reason=end, stop_sequence=stop)

    async def tokenize(self, prompt: g.TextPrompt | g.ChatPrompt, *, model: str = "") -> list[int]:
        limits.check_prompt_text(prompt)
        return list(bytes_of(prompt))

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        return bytes(token_ids).decode()

    def models(self) -> list[g.ModelEntry]:
        return [ENTRY]

    def model(self, name: str) -> g.ModelEntry:
        if name not in ("", "m", "alias"):
            raise limits.UnknownModel(name, ["m", "alias"])
        return ENTRY

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def bytes_of(prompt: g.Prompt) -> bytes:
    if isinstance(prompt, g.ChatPrompt):
        return "".join(message.content or "" for message in prompt.messages).encode()
    return prompt.text.encode() if isinstance(prompt, g.TextPrompt) else bytes(prompt.token_ids)
