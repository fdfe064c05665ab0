"""The real GPU worker with a model runner that marked token sequences kill: `python -m tests.chaos.poisoned_worker`.

Takes the flags of gpu_worker. Nothing in the product knows of it.
"""

import os
import signal
from collections.abc import Callable, Sequence

from gpu_worker import __main__ as gpu_worker
from gpu_worker import startup
from gpu_worker.core.batch_state import BatchState, Rows
from gpu_worker.core.step import Step
from gpu_worker.model_runner import Execution, ModelRunner
from octavo import shutdown

# Ids of rare words of the demo model's vocabulary; no prompt of the tests has them in a row.
KILLS_WHEN_COMPUTED = (40_001, 40_002, 40_003)  # by the step that computes the last of the three
KILLS_WHEN_DECODING = (40_004, 40_005, 40_006)  # by each step that goes on from an answer's first token


class MarkedState(BatchState):
    """Remembers the rows of the step in hand."""

    rows: Rows

    def apply(self, step: Step) -> Rows:
        self.rows = super().apply(step)
        return self.rows


class PoisonedRunner(ModelRunner):
    """Dies, as of a bug in a kernel, when the forward pass of a marked step begins."""

    def execute(self, step: Step, launched: Callable[[], None] | None = None) -> Execution:
        def die_or_launch() -> None:
            if self._is_poisoned():
                os.kill(os.getpid(), signal.SIGKILL)
            if launched is not None:
                launched()

        return super().execute(step, die_or_launch)

    def _is_poisoned(self) -> bool:
        assert isinstance(self.state, MarkedState)
        slots, counts = self.state.rows.slots.tolist(), self.state.rows.num_scheduled_tokens.tolist()
        return any(self._kills(slot, count) for slot, count in zip(slots, counts, strict=True))

    def _kills(self, slot: int, count: int) -> bool:
        state = self.state
        start = int(state.num_computed_tokens[slot])
        token_ids = state.token_ids[slot, : int(state.num_tokens[slot])].tolist()
        deadly = _end_of(KILLS_WHEN_COMPUTED, token_ids)
        if deadly is not None and start <= deadly < start + count:
            return True
        is_decoding = count == 1 and start >= state.request(slot).num_prompt_tokens
        return is_decoding and _end_of(KILLS_WHEN_DECODING, token_ids) is not None


def _end_of(marked: Sequence[int], token_ids: Sequence[int]) -> int | None:
    """The position of the last token of the first occurrence."""
    length = len(marked)
    starts = range(len(token_ids) - length + 1)
    return next((i + length - 1 for i in starts if tuple(token_ids[i : i + length]) == tuple(marked)), None)


if __name__ == "__main__":
    vars(startup).update(ModelRunner=PoisonedRunner, BatchState=MarkedState)
    shutdown.run(gpu_worker.main)
