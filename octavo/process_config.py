"""The settings that every process has, whatever it serves: how it logs and how long it may take to end."""

from dataclasses import dataclass

from octavo.logs import LogFormat, LogLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """A group of each service's settings."""

    log_level: LogLevel = "info"  # least severe line that is written
    log_format: LogFormat = "json"  # json for machines, text for people
    drain_timeout_s: float = 30.0  # seconds that the work in hand gets after SIGTERM

    def __post_init__(self) -> None:
        if self.drain_timeout_s < 0:
            raise ValueError(f"drain_timeout_s must not be negative, got {self.drain_timeout_s}")


def check_port(name: str, port: int) -> None:
    """Raise ValueError for a number that is neither a port nor 0."""
    if not 0 <= port <= 65535:
        raise ValueError(f"{name} must be 0 to 65535, got {port}")
