"""Answers steps strictly in order: runs them, or says why not. One thread calls it; knows no gRPC and no event loop."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_worker.core.step import BadStep, SlotsDiffer, Step, StepFacts, StepResult, StepStatus, StepTiming
from gpu_worker.core.step_sequence import StepSequence
from octavo import logs

if TYPE_CHECKING:  # the runner brings torch along, which neither link nor tests of the link need
    from gpu_worker.model_runner import Execution, ModelRunner

_log = logs.get(__name__)


def _nothing() -> None:
    """Nobody wants to know."""


class StepExecutor:
    """The runner, and what has been answered in this incarnation."""

    def __init__(self, runner: "ModelRunner") -> None:
        self._runner = runner
        self._sequence = StepSequence()
        self._ended_ns: int | None = None  # perf_counter_ns of the end of the last step that ran

    def execute(self, step: Step, received_ns: int, *, launched: Callable[[], None] = _nothing) -> StepResult:
        """The answer to the next step. `launched` is called when the model starts to compute."""
        if self._sequence.may_run(step.seq, step.acked_seq):
            return self._run(step, received_ns, launched)
        self._runner.state.drop(step)
        self._sequence.answered(step.seq, voids_later=False)
        return _answer(step, StepStatus.VOID, "planned before a fault was known")

    def reset(self) -> None:
        """Forget every request; the blocks stay valid."""
        self._runner.state.reset()

    def renew(self) -> None:
        """Start a new incarnation: no request, no block, no step."""
        self._runner.state.reset()
        self._sequence = StepSequence()

    def _run(self, step: Step, received_ns: int, launched: Callable[[], None]) -> StepResult:
        try:
            execution = self._runner.execute(step, launched)
        except SlotsDiffer as differing:
            return self._refuse(step, f"slots differ: {differing}", status=StepStatus.VOID)
        except BadStep as bad:
            return self._refuse(step, str(bad))
        except (RuntimeError, IndexError, MemoryError) as failure:  # what torch raises: of this step, not the process
            _log.exception("step_failed", seq=step.seq, step=step.step)
            return self._refuse(step, f"{type(failure).__name__}: {failure}")
        timing = self._timing(execution, received_ns)
        self._ended_ns = execution.sampled_ns
        self._sequence.answered(step.seq, voids_later=False)
        return StepResult(
            session=step.session,
            step=step.step,
            seq=step.seq,
            status=StepStatus.OK,
            token_ids=execution.token_ids,
            logprobs=execution.logprobs,
            timing=timing,
            facts=StepFacts(
                ended_ns=time.time_ns(),
                num_rows=execution.num_rows,
                num_tokens=execution.num_tokens,
                num_decode_rows=execution.num_decode_rows,
                trace_context=step.trace_context,
                joined=tuple(new.trace_context for new in step.new_requests if new.trace_context),
            ),
        )

    def _refuse(self, step: Step, message: str, *, status: StepStatus = StepStatus.FAULT) -> StepResult:
        self._runner.state.drop(step)
        self._sequence.answered(step.seq, voids_later=True)
        _log.warning("step_refused", seq=step.seq, step=step.step, status=status.name, reason=message)
        return _answer(step, status, message)

    def _timing(self, execution: "Execution", received_ns: int) -> StepTiming:
        idle_ns = execution.started_ns - self._ended_ns if self._ended_ns is not None else 0
        was_there = self._ended_ns is not None and received_ns <= self._ended_ns
        return StepTiming(
            gap_us=idle_ns // 1000 if was_there else 0,
            prepare_us=(execution.prepared_ns - execution.started_ns) // 1000,
            forward_us=(execution.forwarded_ns - execution.prepared_ns) // 1000,
            sample_us=(execution.sampled_ns - execution.forwarded_ns) // 1000,
            idle_us=idle_ns // 1000,
        )


def _answer(step: Step, status: StepStatus, message: str) -> StepResult:
    return StepResult(session=step.session, step=step.step, seq=step.seq, status=status, message=message)
