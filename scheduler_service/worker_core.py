"""The scheduler of a worker that has just attached, within what both sides can take. Decides nothing else."""

from dataclasses import replace

from scheduler_service.core.places import Places
from scheduler_service.core.plan import Limits, Pool
from scheduler_service.core.policy import Policy
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.worker_hello import Hello


def scheduler_of(hello: Hello, limits: Limits, *, policy: Policy, places: Places) -> Scheduler:
    """It goes on behind the last step that the worker has run, whoever sent that."""
    limits = _within(hello, limits)
    pool = Pool(
        num_blocks=hello.num_blocks,
        block_size=hello.fingerprint.block_size,
        max_model_len=_max_model_len(hello, limits),
    )
    return Scheduler(pool=pool, limits=limits, policy=policy, first_seq=hello.last_executed_seq + 1, places=places)


def _within(hello: Hello, limits: Limits) -> Limits:
    """The limits of steps for this worker, which fails one with more tokens than it said it takes."""
    num_tokens = min(limits.max_num_batched_tokens, hello.max_num_batched_tokens)
    return replace(limits, max_num_batched_tokens=num_tokens)


def _max_model_len(hello: Hello, limits: Limits) -> int:
    """The longest sequence; without chunks none may exceed what one step can take."""
    if limits.is_chunked_prefill:
        return hello.max_model_len
    return min(hello.max_model_len, limits.max_num_batched_tokens)
