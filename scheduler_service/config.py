"""Settings of the scheduler."""

import math
from dataclasses import dataclass, field
from typing import Literal

from octavo.process_config import ProcessConfig, check_port
from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """What a step holds and who is served first."""

    max_num_batched_tokens: int = 2048  # token budget of one step; raises throughput and ITL together
    max_num_seqs: int = 256  # requests that run at once on one worker
    scheduling_policy: Literal["fcfs", "priority", "fair"] = "fcfs"  # who is served first: the earlier, the lower
    #   priority, or the tenant that was computed the least for
    priority_aging_s: float = 60.0  # under priority, seconds of waiting that make up for one class; nobody starves
    enable_slot_preemption: bool = True  # under priority, a strictly higher class takes the place of a lower one when
    #   all are taken; the lower one is computed again
    tenant_weights: tuple[str, ...] = ()  # under fair, shares of tenants, as in a=2,b=0.5; others have 1
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in a step, so that others pass; 0 = off
    enable_chunked_prefill: bool = True  # off: a prompt is computed in one step, and none may exceed the token budget
    watermark: float = 0.01  # share of the blocks that admissions leave free for those that run

    def __post_init__(self) -> None:
        _check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _check_at_least("max_num_seqs", self.max_num_seqs, 1)
        _check_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if not 0 < self.priority_aging_s < math.inf:
            raise ValueError(f"priority_aging_s must be more than 0 seconds, got {self.priority_aging_s:g}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be a share from 0 to below 1, got {self.watermark}")
        for item in self.tenant_weights:
            _weight(item)

    @property
    def policy(self) -> Policy:
        return Policy(self.scheduling_policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How much may wait: on one worker, and for any worker while none is there."""

    max_queue_len: int = 1024  # requests that may wait; more are refused with QUEUE_FULL
    max_queued_tokens: int = 0  # tokens to be computed for those that wait, as far as the cache is known; more
    #   are refused with QUEUE_FULL; 0 = any number
    max_tenant_queue_len: int = 0  # requests of one tenant that may wait; more get TENANT_QUOTA; 0 = any number
    max_queue_wait_s: float = 0.0  # seconds to its first token that a request may be predicted; one that would take
    #   longer is refused with QUEUE_FULL and told when to come back; 0 = any time
    no_worker_timeout_s: float = 30.0  # seconds without any worker after which requests end with NO_WORKER; longer than
    #   a worker takes to restart

    def __post_init__(self) -> None:
        _check_at_least("max_queue_len", self.max_queue_len, 1)
        _check_at_least("max_queued_tokens", self.max_queued_tokens, 0)
        _check_at_least("max_tenant_queue_len", self.max_tenant_queue_len, 0)
        if not 0 <= self.max_queue_wait_s < math.inf:
            raise ValueError(f"max_queue_wait_s must be 0 or more seconds, got {self.max_queue_wait_s:g}")
        if not 0 < self.no_worker_timeout_s < math.inf:
            raise ValueError(f"no_worker_timeout_s must be more than 0 seconds, got {self.no_worker_timeout_s:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """One scheduler; `python -m scheduler_service --help` prints the comments."""

    listen_addr: str = "127.0.0.1:50052"  # host:port or unix:/path; gateways and workers dial it
    kvcache_addr: str = "127.0.0.1:50053"  # host:port or unix:/path of the KV cache service
    metrics_port: int = 51052  # HTTP port of /metrics, on every interface; 0 = none
    scheduling: Scheduling = field(default_factory=Scheduling)
    queue: Queue = field(default_factory=Queue)
    process: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        check_port("metrics_port", self.metrics_port)

    @property
    def limits(self) -> Limits:
        scheduling, queue = self.scheduling, self.queue
        return Limits(
            max_num_batched_tokens=scheduling.max_num_batched_tokens,
            max_num_seqs=scheduling.max_num_seqs,
            max_queue_len=queue.max_queue_len,
            max_queued_tokens=queue.max_queued_tokens,
            max_tenant_queue_len=queue.max_tenant_queue_len,
            max_queue_wait_s=queue.max_queue_wait_s,
            no_worker_timeout_s=queue.no_worker_timeout_s,
            long_prefill_token_threshold=scheduling.long_prefill_token_threshold,
            is_chunked_prefill=scheduling.enable_chunked_prefill,
            watermark=scheduling.watermark,
            preempts_for_slots=scheduling.enable_slot_preemption,
            priority_aging_s=scheduling.priority_aging_s,
            tenant_weights=dict(_weight(item) for item in scheduling.tenant_weights),
        )


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _weight(item: str) -> tuple[str, float]:
    """A tenant and its weight, from `tenant=weight`."""
    tenant, sign, text = item.rpartition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not sign or not 0 < weight < math.inf:
        raise ValueError(f"tenant_weights wants tenant=weight with a weight above 0, got {item!r}")
    return tenant.strip(), weight
