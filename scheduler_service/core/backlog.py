"""How much waits: in all, by tenant and by class; kept up to date, so that asking costs nothing."""

from dataclasses import dataclass
from typing import TypeVar

from scheduler_service.core.request import Request

K = TypeVar("K", str, int)


@dataclass(slots=True)
class Queued:
    """Requests, and the tokens that are to be computed for them before their first output."""

    num_requests: int = 0
    num_tokens: int = 0

    def add(self, num_tokens: int) -> None:
        self.num_requests += 1
        self.num_tokens += num_tokens

    def remove(self, num_tokens: int) -> None:
        self.num_requests -= 1
        self.num_tokens -= num_tokens


class Backlog:
    """The load of a queue."""

    def __init__(self) -> None:
        self.total = Queued()
        self.by_tenant: dict[str, Queued] = {}
        self.by_priority: dict[int, Queued] = {}
        self._counted: dict[Request, tuple[int, int]] = {}  # tokens and class: a late token makes a request longer

    def add(self, request: Request) -> None:
        num_tokens, class_ = request.num_expected_tokens, request.priority
        self._counted[request] = (num_tokens, class_)
        self.total.add(num_tokens)
        self.by_tenant.setdefault(request.identity.tenant, Queued()).add(num_tokens)
        self.by_priority.setdefault(class_, Queued()).add(num_tokens)

    def remove(self, request: Request) -> None:
        num_tokens, class_ = self._counted.pop(request)
        self.total.remove(num_tokens)
        _take_out(self.by_tenant, request.identity.tenant, num_tokens)
        _take_out(self.by_priority, class_, num_tokens)

    def of_tenant(self, tenant: str) -> Queued:
        return self.by_tenant.get(tenant, Queued())

    def up_to_class(self, priority: int) -> Queued:
        """What waits in this class and in higher ones."""
        loads = [load for class_, load in self.by_priority.items() if class_ <= priority]
        return Queued(sum(load.num_requests for load in loads), sum(load.num_tokens for load in loads))


def _take_out(loads: dict[K, Queued], key: K, num_tokens: int) -> None:
    load = loads[key]
    load.remove(num_tokens)
    if load.num_requests == 0:
        del loads[key]
