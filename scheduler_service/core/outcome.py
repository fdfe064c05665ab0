"""What a settled plan, and what a step's result, came to: the facts that the shell tells others."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.flight import SentStep
from scheduler_service.core.plan import Step
from scheduler_service.core.request import Request


@dataclass(slots=True, kw_only=True)
class Settlement:
    """What a settled plan came to."""

    step: Step | None = None
    sent: SentStep | None = None
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)


@dataclass(slots=True)
class Output:
    """What one sampling row brought; no tokens when its request had ended before."""

    request: Request
    token_ids: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Update:
    """What a step's result came to."""

    sent: SentStep | None = None
    outputs: list[Output] = field(default_factory=list)  # one per sampling row, in row order
    preempted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
