"""Settings of the scheduler."""

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
    max_queue_len: int = 1024  # requests that may wait; more are refused with QUEUE_FULL
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"  # who is served first: the earlier, or the lower priority
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in a step, so that others pass; 0 = off
    enable_chunked_prefill: bool = True  # off: a prompt is computed in one step, and none may exceed the token budget
    watermark: float = 0.01  # share of the blocks that admissions leave free for those that run

    def __post_init__(self) -> None:
        for name, value in (
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_num_seqs", self.max_num_seqs),
            ("max_queue_len", self.max_queue_len),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        threshold = self.long_prefill_token_threshold
        if threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must not be negative, got {threshold}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be a share from 0 to below 1, got {self.watermark}")

    @property
    def limits(self) -> Limits:
        return Limits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_queue_len=self.max_queue_len,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            is_chunked_prefill=self.enable_chunked_prefill,
            watermark=self.watermark,
        )

    @property
    def policy(self) -> Policy:
        return Policy(self.scheduling_policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """One scheduler; `python -m scheduler_service --help` prints the comments."""

    listen_addr: str = "127.0.0.1:50052"  # host:port or unix:/path; gateways and workers dial it
    kvcache_addr: str = "127.0.0.1:50053"  # host:port or unix:/path of the KV cache service
    metrics_port: int = 51052  # HTTP port of /metrics, on every interface; 0 = none
    scheduling: Scheduling = field(default_factory=Scheduling)
    process: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        check_port("metrics_port", self.metrics_port)
