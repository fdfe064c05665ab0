"""Who runs, who waits, and the moves between the two. Knows neither budget nor policy beyond the queue's order."""

from collections.abc import Iterable, Sequence

from scheduler_service.core.pending import Pending
from scheduler_service.core.policy import Order
from scheduler_service.core.request import SET_ASIDE, Entry, Request, Status
from scheduler_service.core.request_queue import RequestQueue


class Roster:
    """The requests of one worker. Running ones hold blocks, waiting ones do not."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.running: list[Request] = []  # in the order in which they are served
        self.waiting = RequestQueue(order)
        self.pending = Pending()
        self.released_handles: list[int] = []  # ended, and the worker does not know yet
        self.by_id: dict[str, Request] = {}
        self.by_handle: dict[int, Request] = {}
        self.is_solo_refused = False  # a suspect found no room to run alone: let the others end first
        self._next_handle = 1

    def enter(self, request: Request, *, max_model_len: int, entry: Entry) -> None:
        """Take a request in and give it a handle, never used before on this worker."""
        assert request.request_id not in self.by_id, f"request {request.request_id} is here already"
        request.place(self._next_handle, max_model_len)
        self._next_handle += 1
        self.by_id[request.request_id] = self.by_handle[request.handle] = request
        if entry is Entry.BACK:
            self.waiting.put_back([request])
        else:
            if not self.waiting:  # accounts are read when somebody comes, and then in every plan
                self.order.charge(self.running)
            self.waiting.add(request)

    @property
    def num_occupied(self) -> int:
        """Places that running requests take: one until its last token is planned."""
        return sum(not request.is_fully_planned for request in self.running)

    @property
    def num_running_tokens(self) -> int:
        """Tokens of running requests that are known and not planned yet."""
        return sum(max(0, request.num_known_tokens - request.num_computed_tokens) for request in self.running)

    def admit(self, request: Request) -> None:
        self.waiting.remove(request)
        request.enter(Status.RUNNING)
        self.running.append(request)

    def preempt(self, requests: Iterable[Request]) -> list[Request]:
        """Their blocks are gone: to the front of the queue, in running order, to be computed again."""
        lost = set(requests)
        in_order = [request for request in self.running if request in lost]
        assert len(in_order) == len(lost), f"preempted requests do not run: {[r.request_id for r in lost]}"
        for request in in_order:
            request.enter(Status.PREEMPTED)
            request.num_preemptions += 1
            request.forget_progress()
        if in_order:
            self.running = [request for request in self.running if request not in lost]
            self.waiting.put_back(in_order)
            self.is_solo_refused = False
        return in_order

    def release(self, requests: Sequence[Request]) -> list[Request]:
        """Take their blocks back by this side's own decision: the KV cache service hears of it with the next plan."""
        for request in requests:
            self.pending.free(request)
            self.pending.drop(request)
        return self.preempt(requests)

    def finish(self, request: Request, status: Status, detail: str = "") -> None:
        """End a request, wherever it is; its blocks go back with the next plan."""
        if not request.is_finished:
            request.enter(status)
        request.finish_detail = detail
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.order.ended(request)
            self.running.remove(request)
            self.pending.free(request)
            self.is_solo_refused = False
        self._strike_out(request)

    def withdraw(self, request: Request) -> None:
        """A waiting request goes to another worker."""
        assert not request.num_in_flight, f"{request.request_id} is in a step that was sent"
        self.waiting.remove(request)
        self._strike_out(request)
        request.is_declared = False
        request.num_committed_ids = 0

    def _strike_out(self, request: Request) -> None:
        """It is no longer here, and whoever knows its handle hears of it."""
        if request.is_declared:
            self.pending.forget(request)
        if request.was_admitted:
            self.released_handles.append(request.handle)
        del self.by_id[request.request_id], self.by_handle[request.handle]

    def disband(self) -> list[Request]:
        """The worker is gone: everybody, in the order in which they should be served elsewhere."""
        everybody = [*self.running, *self.waiting]
        for request in everybody:
            if request.status is Status.RUNNING:
                request.enter(Status.PREEMPTED)
                request.num_preemptions += 1
                request.forget_progress()
            elif request.status in SET_ASIDE:
                request.enter(Status.WAITING)
            request.is_declared = False
            request.num_in_flight = request.num_committed_ids = 0
        self.running.clear()
        self.by_id.clear()
        self.by_handle.clear()
        self.waiting.clear()
        return everybody
