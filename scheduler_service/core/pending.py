"""What the KV cache service has not been told yet: commits, releases and failures since the last settled plan.

Nothing here is lost when a plan is abandoned: only a settled plan clears it.
"""

from collections.abc import Sequence

from scheduler_service.core.plan import Commits, Frees
from scheduler_service.core.request import Request


class Pending:
    """Ops that go with the next plan."""

    def __init__(self) -> None:
        self._crossed: dict[int, Request] = {}  # by handle: acknowledged past a block border since its last commit
        self._freed_handles: list[int] = []
        self._freed_epochs: list[int] = []
        self.forgotten_handles: list[int] = []
        self.failed_step = 0  # 0 = none

    def __bool__(self) -> bool:
        return bool(self._crossed or self._freed_handles or self.forgotten_handles or self.failed_step)

    def commit(self, request: Request) -> None:
        self._crossed[request.handle] = request

    def free(self, request: Request) -> None:
        """Release the table of the request's current epoch."""
        self._freed_handles.append(request.handle)
        self._freed_epochs.append(request.epoch)

    def forget(self, request: Request) -> None:
        self.forgotten_handles.append(request.handle)

    def fail(self, step: int) -> None:
        """Withdraw what steps from this one on reserved."""
        self.failed_step = min(step, self.failed_step or step)

    def frees(self, displaced: Request | None) -> Frees:
        if displaced is None:
            return Frees(handles=tuple(self._freed_handles), epochs=tuple(self._freed_epochs))
        return Frees(handles=(*self._freed_handles, displaced.handle), epochs=(*self._freed_epochs, displaced.epoch))

    def commits(self, admits: Sequence[Request]) -> Commits:
        """Commits of those that crossed a border, and of those about to be admitted again, whose record lacks ids."""
        requests = dict(self._crossed)
        for request in admits:
            if request.is_declared and request.num_committed_ids < request.num_known_tokens:
                requests[request.handle] = request
        new_ids = [request.token_ids[request.num_committed_ids :] for request in requests.values()]
        return Commits(
            handles=list(requests),
            num_acked_tokens=[min(r.num_acked_tokens, r.num_told_tokens) for r in requests.values()],
            num_new_tokens=[len(ids) for ids in new_ids],
            new_token_ids=[token_id for ids in new_ids for token_id in ids],
        )

    def settled(self, admits: Sequence[Request]) -> None:
        """Everything has been told."""
        for request in (*self._crossed.values(), *admits):
            request.num_committed_ids = len(request.token_ids)
            request.num_committed_tokens = request.num_acked_tokens
        self.clear()

    def clear(self) -> None:
        """Nothing needs telling: the pool is opened again with whole tables."""
        self._crossed.clear()
        self._freed_handles.clear()
        self._freed_epochs.clear()
        self.forgotten_handles.clear()
        self.failed_step = 0

    def drop(self, request: Request) -> None:
        """A request that ended has no commits left unless it crossed a border before."""
        self._crossed.pop(request.handle, None)
