"""Order of the waiting queue and order of victims, for each scheduling policy. Pure, and nothing else."""

import enum
from collections.abc import Sequence

from scheduler_service.core.request import Request


class Policy(enum.StrEnum):
    """Who is served first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


QueueKey = tuple[float, ...]


def queue_key(policy: Policy, request: Request, *, rank: int, place: float) -> QueueKey:
    """Where a request waits; smaller is served first.

    `rank` is 0 for a request that never ran and falls with every batch of preempted ones, so these are in front; under
    PRIORITY in front of their own class only. `place` orders requests of one rank: arrival, or order when they ran.
    """
    match policy:
        case Policy.FCFS:
            return (rank, place)
        case Policy.PRIORITY:
            return (request.priority, rank, place)


def victims(policy: Policy, running: Sequence[Request]) -> list[Request]:
    """Running requests in the order in which their blocks are taken for others."""
    match policy:
        case Policy.FCFS:
            return list(reversed(running))
        case Policy.PRIORITY:
            return sorted(running, key=lambda r: (r.priority, r.arrival, r.request_id), reverse=True)


def displaced(policy: Policy, running: Sequence[Request], head: Request) -> Request | None:
    """The running request whose slot `head` may take: of a strictly lower class, the last of its victims' order."""
    match policy:
        case Policy.FCFS:
            return None
        case Policy.PRIORITY:
            last = victims(policy, running)[0]
            return last if head.priority < last.priority else None
