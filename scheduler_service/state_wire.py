"""What GetState tells of one worker, its queue and its speed, as octavo.scheduler.v1 has it. Decides nothing."""

import time
from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service.core.progress import WAITS_FOR, Stall
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.worker_loop import WorkerLoop

MAX_TENANTS = 100  # that are listed


def worker(loop: WorkerLoop) -> pb.WorkerState:
    """One attached worker."""
    core, figures, hello = loop.core, loop.core.figures, loop.link.hello
    state = pb.WorkerState(
        worker_id=hello.worker_id,
        incarnation=hello.incarnation,
        session=hello.session,
        num_running=len(core.running),
        num_waiting=core.num_waiting,
        num_blocks=core.pool.num_blocks - 1,
        num_free_blocks=figures.pool.num_free,
        num_cached_blocks=figures.pool.num_cached,
        num_query_tokens=figures.num_query_tokens,
        num_hit_tokens=figures.num_hit_tokens,
        num_steps=figures.num_steps,
        num_preemptions=figures.num_preemptions,
        num_prompt_tokens=figures.num_prompt_tokens,
        num_output_tokens=figures.num_output_tokens,
        mean_step_ms=_mean_ms(loop.recent_step_us),
        mean_gap_ms=_mean_ms(loop.recent_gap_us),
        draining=loop.is_draining,
        num_steps_in_flight=core.num_steps_in_flight,
        stall=_stall(loop.watchdog.stall),
    )
    _fill_queue(state, core, time.monotonic())
    return state


def _fill_queue(state: pb.WorkerState, core: Scheduler, now_s: float) -> None:
    """Who waits, for what, and for how long yet."""
    state.num_waiting_tokens = core.backlog.total.num_tokens
    state.wait_reasons.extend(
        pb.WaitReason(reason=reason, num_requests=num)
        for reason, num in _most_first(core.num_waiting_by_reason.items())
    )
    queues = [
        pb.TenantQueue(tenant=tenant, num_requests=queued.num_requests, num_tokens=queued.num_tokens)
        for tenant, queued in core.backlog.by_tenant.items()
    ]
    queues.sort(key=lambda queue: queue.num_requests, reverse=True)
    state.tenant_queues.extend(queues[:MAX_TENANTS])
    requests_per_s, tokens_per_s = core.drain.requests_per_s(now_s), core.drain.tokens_per_s
    if requests_per_s is not None:
        state.drained_requests_per_s = requests_per_s
    if tokens_per_s is not None:
        state.computed_tokens_per_s = tokens_per_s
    predicted_s = core.predicted_ttft_s(now_s)
    if predicted_s is not None:
        state.predicted_ttft.CopyFrom(_duration(predicted_s))


def _most_first(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda count: count[1], reverse=True)


def _stall(stall: Stall | None) -> pb.Stall | None:
    if stall is None:
        return None
    return pb.Stall(waits_for=stall.waits_for, message=WAITS_FOR[stall.waits_for], duration=_duration(stall.duration_s))


def _duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(int(seconds * 1e9))
    return message


def _mean_ms(microseconds: Sequence[int]) -> float:
    return sum(microseconds) / len(microseconds) / 1000 if microseconds else 0.0
