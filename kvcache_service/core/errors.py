"""Mistakes of callers: each says what was asked, what was there, what to do. Nothing has changed when one is raised."""


class OutOfBlocks(Exception):
    """More blocks were asked for than are free."""


class NothingToAllocate(ValueError):
    """An advance by no tokens was asked for."""


class UnknownRequest(Exception):
    """A request that was never declared, or has been forgotten."""


class UnknownPool(Exception):
    """A pool that is not open; open it."""


class StaleSession(Exception):
    """A session or a worker incarnation that is over."""


class OutOfOrder(Exception):
    """A plan that is not the next one."""


class Conflict(Exception):
    """Other bytes under the key of a plan that was already answered."""


class BadPlan(Exception):
    """A plan that contradicts itself or the state of its pool."""


class BadTable(Exception):
    """Declared tables that contradict each other or their pool."""


class BadPool(Exception):
    """A pool that cannot be: no name, or an impossible size."""


class PinQuotaExceeded(Exception):
    """A pin that would keep more of a pool than its tenant, or all tenants together, may."""

    def __init__(self, message: str, **numbers: int) -> None:
        """`numbers` are those of the message, by name."""
        super().__init__(message)
        self.metadata = {name: str(number) for name, number in numbers.items()}


class NothingCached(Exception):
    """A prefix that is cached nowhere, so that nothing of it can be kept."""


class BadPin(ValueError):
    """A pin that cannot be."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class BadPrefix(ValueError):
    """A public prefix that cannot be."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class BadTenant(ValueError):
    """A tenant that cannot be meant."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.field = "tenant"


class FingerprintMismatch(Exception):
    """Two peers that must not share block hashes."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.metadata = {"field": field}
