"""What is refused at submit, with the numbers: requests that could never run here, and too long a queue."""

from collections.abc import Mapping

from scheduler_service.core.plan import Limits, Pool
from scheduler_service.core.request import Request

QUEUE_FULL_RETRY_S = 1.0


class Rejected(Exception):
    """A request that is not taken; `metadata` carries every number of the message."""

    retry_after_s: float | None = None
    field: str | None = None

    def __init__(self, message: str, metadata: Mapping[str, str]) -> None:
        super().__init__(message)
        self.metadata = dict(metadata)


class ContextLengthExceeded(Rejected):
    """The prompt leaves no room for a token."""

    field = "prompt"


class KVCapacityExceeded(Rejected):
    """The prompt can never fit the block pool."""

    field = "prompt"


class InvalidParameter(Rejected):
    """The stop rules contradict each other."""

    field = "stopping"


class QueueFull(Rejected):
    """Too many requests wait already."""

    retry_after_s = QUEUE_FULL_RETRY_S


def may_fit(request: Request, pool: Pool) -> bool:
    """Whether this worker could ever take the request, with the tokens that it has."""
    num_known = request.num_known_tokens
    return num_known < pool.max_model_len and pool.num_blocks_for(num_known + 1) < pool.num_blocks


def check_fits(request: Request, pool: Pool) -> None:
    """Raise what makes it impossible to ever serve this request on this worker."""
    num_prompt, limit = request.num_prompt_tokens, pool.max_model_len
    if num_prompt >= limit:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {limit} tokens, the prompt has {num_prompt} and leaves no room "
            f"for an answer; send at most {limit - 1}",
            {"limit": str(limit), "prompt_tokens": str(num_prompt), "max_tokens": str(request.rules.max_tokens),
             "max_allowed": str(limit - 1)},
        )  # fmt: skip
    needed, usable = pool.num_blocks_for(num_prompt + 1), pool.num_blocks - 1
    if needed > usable:
        raise KVCapacityExceeded(
            f"the prompt of {num_prompt} tokens needs {needed} blocks of {pool.block_size}, the worker's KV cache has "
            f"{usable}; send at most {usable * pool.block_size - 1} tokens, or give the worker more memory",
            {"needed_blocks": str(needed), "total_blocks": str(usable), "prompt_tokens": str(num_prompt)},
        )


def check_rules(request: Request, pool: Pool) -> None:
    """Raise when the request asks for no token, or for more at least than at most."""
    rules, room = request.rules, pool.max_model_len - request.num_prompt_tokens
    if request.num_prompt_tokens < 1:
        raise InvalidParameter("the prompt is empty; send at least one token", {"prompt_tokens": "0"})
    if rules.max_tokens < 1:
        raise InvalidParameter(
            f"max_tokens is {rules.max_tokens}; ask for at least 1", {"max_tokens": str(rules.max_tokens)}
        )
    clamped = min(rules.max_tokens, room)
    if rules.min_tokens > clamped:
        raise InvalidParameter(
            f"min_tokens is {rules.min_tokens}, more than the {clamped} tokens that max_tokens and the context allow",
            {"min_tokens": str(rules.min_tokens), "max_tokens": str(clamped)},
        )


def check_queue(num_waiting: int, limits: Limits) -> None:
    """Raise when the queue has no place."""
    if num_waiting >= limits.max_queue_len:
        raise QueueFull(
            f"{num_waiting} requests are waiting, the queue holds {limits.max_queue_len}; try again later",
            {"num_waiting": str(num_waiting), "max_queue_len": str(limits.max_queue_len)},
        )
