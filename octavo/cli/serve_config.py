"""The settings that only `octavo serve` has; all others belong to the services it starts."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Filled from flags, OCTAVO_SERVE_<FIELD> and defaults."""

    num_workers: int = 1  # worker processes on this machine; they share its cores and its memory
    metrics_port: int = 0  # /metrics of the scheduler; kvcache has the next port, then the workers; 0 = none listens
    log_format: Literal["text", "json"] = "text"  # how the services' log lines are shown: for people or as they are

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"--num-workers must be at least 1, got {self.num_workers}")
        if not 0 <= self.metrics_port <= 65_000:
            raise ValueError(f"--metrics-port must be 0 (off) or a port up to 65000, got {self.metrics_port}")
