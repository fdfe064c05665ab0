"""The scheduling policies, behind one interface: who waits in which order, and who gives way to whom."""

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

from scheduler_service.core.backlog import Backlog, Queued
from scheduler_service.core.fair import Fair
from scheduler_service.core.fcfs import Fcfs
from scheduler_service.core.plan import Limits
from scheduler_service.core.priority import Priority
from scheduler_service.core.request import Request


class Policy(enum.StrEnum):
    """Who is served first."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


class Order(Protocol):
    """The waiting requests of one worker, as a policy orders them. No operation costs more than O(log n)."""

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they will be let in."""

    def add(self, request: Request) -> None:
        """A newcomer."""

    def put_back(self, requests: Sequence[Request]) -> None:
        """Requests that lost their blocks, in the order in which they ran."""

    def remove(self, request: Request) -> None:
        """It was let in, or it ended."""

    def victims(self, running: Sequence[Request]) -> list[Request]:
        """Running requests in the order in which their blocks are taken for others."""

    def displaced(self, running: Sequence[Request], head: Request) -> Request | None:
        """The running request whose slot the head of the queue may take."""

    def ahead_of(self, request: Request, backlog: Backlog) -> Queued:
        """The least of the backlog that will be served before a newcomer."""

    def expected_ahead(self, request: Request, backlog: Backlog) -> Queued:
        """What will be, if others go on to come as they do."""

    def charge(self, running: Sequence[Request]) -> None:
        """Book what running requests got since the last time. Asked before an order is read."""

    def ended(self, request: Request) -> None:
        """A request that ran is over."""


def order(policy: Policy, limits: Limits) -> Order:
    """An empty queue's order."""
    match policy:
        case Policy.FCFS:
            return Fcfs()
        case Policy.PRIORITY:
            return Priority(aging_s=limits.priority_aging_s)
        case Policy.FAIR:
            return Fair(limits.tenant_weights)
