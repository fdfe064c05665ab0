"""Weighted fair over tenants: the tenant that was computed the least for, by its weight, is let in next.

A tenant's account counts the tokens computed for it, divided by its weight: a request's uncached tokens as soon as it
is let in, its outputs as they come, nothing twice. A tenant with nothing in the queue saves up nothing: when it comes
back, its account is raised to the least among those who wait.

How far two tenants that both wait can be apart: when a request is let in, its tenant's account is not above any other's
who waits. From then on it can rise by that request's own uncached tokens and by what the tenant's running requests
still generate. So accounts differ by at most (longest prompt + tokens that requests running at once generate) divided
by the smaller weight.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_service.core.backlog import Backlog, Queued
from scheduler_service.core.fcfs import FrontLine
from scheduler_service.core.ordered_heap import OrderedHeap
from scheduler_service.core.request import SET_ASIDE, Request

MAX_IDLE_TENANTS: Final = 1024  # accounts that are kept beside those in use


@dataclass(slots=True, kw_only=True, eq=False)
class Tenant:
    """One tenant's account, and its requests that never ran, by arrival."""

    name: str
    weight: float
    rank: int  # settles ties
    account: float = 0.0  # tokens computed, by weight
    newcomers: OrderedHeap[Request] = field(default_factory=OrderedHeap)

    @property
    def key(self) -> tuple[float, float]:
        return (self.account, self.rank)


class Fair:
    """By account, then arrival. Those who lost their blocks go before everybody, and cost their tenant no more."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._front = FrontLine()
        self._tenants: dict[str, Tenant] = {}
        self._waiting: OrderedHeap[Tenant] = OrderedHeap()  # those with newcomers
        self._highest = 0.0  # account ever
        self._num_ranks = 0
        self._num_forgetting = MAX_IDLE_TENANTS

    def __iter__(self) -> Iterator[Request]:
        """As they would be let in one after the other, each charged what is expected of it."""
        yield from self._front
        tenants = iter(self._waiting)
        started: list[tuple[tuple[float, float], Tenant, Iterator[Request]]] = []  # a heap: expected account, rank
        tenant = next(tenants, None)
        while tenant is not None or started:
            if tenant is not None and (not started or tenant.key < started[0][0]):
                account, chosen, requests = tenant.account, tenant, iter(tenant.newcomers)
                tenant = next(tenants, None)
            else:
                (account, _), chosen, requests = heapq.heappop(started)
            request = next(requests, None)
            if request is not None:
                yield request
                cost = 0 if request.status in SET_ASIDE else request.num_expected_tokens
                heapq.heappush(started, ((account + cost / chosen.weight, chosen.rank), chosen, requests))

    def add(self, request: Request) -> None:
        tenant = self._tenant(request)
        if not tenant.newcomers:
            tenant.account = max(tenant.account, self._floor())
            self._waiting.push(tenant, tenant.key)
        tenant.newcomers.push(request, (request.arrival,))

    def put_back(self, requests: Sequence[Request]) -> None:
        """Those that only waited on a worker that is gone have no claim to the front: a tenant may have many."""
        self._front.put_back([request for request in requests if request.was_admitted])
        for request in requests:
            if not request.was_admitted:
                self.add(request)

    def remove(self, request: Request) -> None:
        if request in self._front:
            self._front.remove(request)
            return
        tenant = self._tenant(request)
        tenant.newcomers.remove(request)
        if not tenant.newcomers:
            self._waiting.remove(tenant)

    def victims(self, running: Sequence[Request]) -> list[Request]:
        return list(reversed(running))

    def displaced(self, running: Sequence[Request], head: Request) -> Request | None:
        return None

    def ahead_of(self, request: Request, backlog: Backlog) -> Queued:
        """Its own tenant's: how much of the others' goes before depends on who else comes."""
        return backlog.of_tenant(request.identity.tenant)

    def expected_ahead(self, request: Request, backlog: Backlog) -> Queued:
        """Its own tenant's, and as much of each other's that waits; never more than there is."""
        own, total = backlog.of_tenant(request.identity.tenant), backlog.total
        num_turns = 1 + sum(name != request.identity.tenant for name in backlog.by_tenant)
        return Queued(
            min(total.num_requests, own.num_requests * num_turns), min(total.num_tokens, own.num_tokens * num_turns)
        )

    def charge(self, running: Sequence[Request]) -> None:
        num_tokens: dict[str, int] = {}
        for request in running:
            num_new = max(request.num_known_tokens, request.num_computed_tokens) - _num_charged(request)
            if num_new > 0:
                request.num_charged_tokens += num_new
                tenant = request.identity.tenant
                num_tokens[tenant] = num_tokens.get(tenant, 0) + num_new
                self._tenant(request)
        for name, num_new in num_tokens.items():
            self._book(self._tenants[name], num_new)
        if len(self._tenants) > self._num_forgetting:
            self._forget({request.identity.tenant for request in running})

    def ended(self, request: Request) -> None:
        """What was charged at its admission and never computed is given back.

        Of one that was preempted it is not known any more how far it had been computed before.
        """
        num_new = max(request.num_computed_tokens, request.num_cached_tokens) - _num_charged(request)
        if num_new > 0 or request.num_preemptions == 0:
            self._book(self._tenant(request), num_new)

    def _tenant(self, request: Request) -> Tenant:
        name = request.identity.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            self._num_ranks += 1
            tenant = Tenant(name=name, weight=self._weights.get(name, 1.0), rank=self._num_ranks)
            self._tenants[name] = tenant
        return tenant

    def _floor(self) -> float:
        """Where a tenant begins that had nothing in the queue: at the least account in it, or beside the highest."""
        least = self._waiting.first()
        return self._highest if least is None else least.account

    def _book(self, tenant: Tenant, num_tokens: int) -> None:
        tenant.account += num_tokens / tenant.weight
        self._highest = max(self._highest, tenant.account)
        if tenant.newcomers:
            self._waiting.push(tenant, tenant.key)

    def _forget(self, running: set[str]) -> None:
        """Accounts of tenants that neither run nor wait and that would be raised to the floor in any case."""
        floor = self._floor()
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if name in running or tenant.newcomers or tenant.account > floor
        }
        self._num_forgetting = 2 * len(self._tenants) + MAX_IDLE_TENANTS


def _num_charged(request: Request) -> int:
    """Positions of a running request that need not be paid for any more; those it found in the cache cost nothing."""
    if not request.num_charged_tokens:
        request.num_charged_tokens = request.num_cached_tokens
    return request.num_charged_tokens
