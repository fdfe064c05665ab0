"""How long a worker's step takes. Knows nothing of blocks or queues.

    seconds = fixed + per_prefill_token * tokens of prompts computed
                    + per_decode_row    * requests that get one more token
                    + per_context_token * tokens whose K/V the step's rows read, each row once

`fixed` is what every step pays: reading the weights once, launching. A chunk of a prompt reads its context once, which
flash attention nearly does; a long prompt's own quadratic part is in `per_prefill_token` at 512 tokens.
"""

from dataclasses import dataclass

from scheduler_service.core.flight import SentStep


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One model on one device."""

    fixed_s: float
    per_prefill_token_s: float
    per_decode_row_s: float
    per_context_token_s: float
    num_blocks: int  # that fit beside the weights
    max_num_batched_tokens: int

    def of(self, sent: SentStep) -> float:
        """Seconds of a step that was just planned: its requests stand where it will leave them."""
        num_decodes = sent.num_tokens.count(1)
        num_prefill = sum(sent.num_tokens) - num_decodes
        num_context = sum([request.num_computed_tokens for request in sent.requests])
        return self.seconds(num_prefill, num_decodes, num_context)

    def seconds(self, num_prefill_tokens: int, num_decode_rows: int, num_context_tokens: int) -> float:
        return (
            self.fixed_s
            + self.per_prefill_token_s * num_prefill_tokens
            + self.per_decode_row_s * num_decode_rows
            + self.per_context_token_s * num_context_tokens
        )


PROFILES = {
    # A roofline, not a measurement: 16 GB of bfloat16 weights at 3 TB/s; 16 GFLOP a token at 600 TFLOP/s; 131 kB of K/V
    # a token at 2.6 TB/s; 55 GB left for K/V.
    "h100-8b": StepTime(
        fixed_s=5.5e-3,
        per_prefill_token_s=27e-6,
        per_decode_row_s=5e-6,
        per_context_token_s=50e-9,
        num_blocks=26_000,
        max_num_batched_tokens=2048,
    ),
    # Fitted to what `python -m benchmarks.bench_step` measured for docs/performance.md: SmolLM2-135M, bfloat16, one
    # thread: 14.4 ms with 1 row, 46.0 ms with 32; a prefill of 512 tokens in 349 ms, of 1,024 in 791 ms.
    "cpu-135m": StepTime(
        fixed_s=13.4e-3,
        per_prefill_token_s=0.66e-3,
        per_decode_row_s=0.95e-3,
        per_context_token_s=0.4e-6,
        num_blocks=4_096,
        max_num_batched_tokens=512,
    ),
}
