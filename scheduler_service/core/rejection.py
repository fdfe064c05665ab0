"""What is refused at submit, with the numbers: requests that could never run here, too long a queue, and deadlines
that cannot be met."""

from collections.abc import Mapping

from scheduler_service.core.backlog import Backlog
from scheduler_service.core.drain_rate import DrainRate
from scheduler_service.core.plan import Limits, Pool
from scheduler_service.core.request import Request


class Rejected(Exception):
    """A request that is not taken; `metadata` carries every number of the message."""

    field: str | None = None

    def __init__(
        self,
        message: str,
        metadata: Mapping[str, str],
        *,
        retry_after_s: float | None = None,
        quota_subject: str | None = None,
    ) -> None:
        super().__init__(message)
        self.metadata = dict(metadata)
        self.retry_after_s = retry_after_s
        self.quota_subject = quota_subject  # what there is too much of


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
    """Too much waits already."""


class TenantQueueFull(Rejected):
    """Too many requests of this tenant wait already."""


class DeadlineUnreachable(Rejected):
    """The first token would come after the deadline."""


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


def check_queue(request: Request, backlog: Backlog, limits: Limits, *, drain: DrainRate, now_s: float) -> None:
    """Raise when the queue has no place. A queue that is empty takes any one request."""
    total, tenant = backlog.total, request.identity.tenant
    num_of_tenant, num_new = backlog.of_tenant(tenant).num_requests, request.num_expected_tokens
    if total.num_requests >= limits.max_queue_len:
        raise QueueFull(
            f"{total.num_requests} requests are waiting, the queue holds {limits.max_queue_len}; try again later",
            {"num_waiting": str(total.num_requests), "max_queue_len": str(limits.max_queue_len)},
            retry_after_s=drain.retry_after_s(num_requests=1, num_tokens=0, now_s=now_s),
            quota_subject="requests",
        )
    if 0 < limits.max_tenant_queue_len <= num_of_tenant:
        raise TenantQueueFull(
            f"{num_of_tenant} requests of tenant {tenant!r} are waiting, the queue holds {limits.max_tenant_queue_len} "
            "of one tenant; try again later",
            {"num_waiting": str(num_of_tenant), "max_tenant_queue_len": str(limits.max_tenant_queue_len)},
            retry_after_s=drain.retry_after_s(num_requests=1, num_tokens=0, now_s=now_s),
            quota_subject=f"tenant:{tenant}",
        )
    excess = total.num_tokens + num_new - limits.max_queued_tokens
    if limits.max_queued_tokens > 0 and excess > 0 and total.num_requests:
        raise QueueFull(
            f"{total.num_tokens} tokens are waiting to be computed, with the {num_new} of this request they are more "
            f"than the {limits.max_queued_tokens} that the queue holds; try again later",
            {"queued_tokens": str(total.num_tokens), "request_tokens": str(num_new),
             "max_queued_tokens": str(limits.max_queued_tokens)},
            retry_after_s=drain.retry_after_s(num_requests=0, num_tokens=excess, now_s=now_s),
            quota_subject="tokens",
        )  # fmt: skip


def queue_too_long(predicted_ttft_s: float, limits: Limits, *, retry_after_s: float) -> QueueFull:
    """Its first token would come later than anybody may be made to wait."""
    bound_s = limits.max_queue_wait_s
    return QueueFull(
        f"its first token would come in up to {predicted_ttft_s:.1f} s, the queue is kept to {bound_s:g} s; try again "
        f"in {retry_after_s:.1f} s, when there will be room for it",
        {"predicted_ttft_s": f"{predicted_ttft_s:.3f}", "max_queue_wait_s": f"{bound_s:g}"},
        retry_after_s=retry_after_s,
        quota_subject="wait",
    )


def check_deadline(request: Request, predicted_ttft_s: float | None, *, now_s: float) -> None:
    """Raise when the deadline cannot be met. A request is never refused before a rate was measured."""
    if request.deadline_s is None or predicted_ttft_s is None:
        return
    remaining_s = request.deadline_s - now_s
    if predicted_ttft_s > remaining_s > 0:  # one that is over already ends as expired
        raise DeadlineUnreachable(
            f"its first token would come in {predicted_ttft_s:.3f} s at the earliest, its deadline is in "
            f"{remaining_s:.3f} s; give it more time, or try again later",
            {"predicted_ttft_s": f"{predicted_ttft_s:.3f}", "remaining_s": f"{remaining_s:.3f}"},
            retry_after_s=predicted_ttft_s - remaining_s,
        )
