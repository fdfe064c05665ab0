"""The order of the waiting queue."""

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy, order
from scheduler_service.core.request import Request, Status
from scheduler_service.core.request_queue import RequestQueue
from tests.scheduler_service.core.rig import a_request


def a_queue(policy: Policy, *entries: tuple[str, int, float]) -> tuple[RequestQueue, dict[str, Request]]:
    queue, requests = RequestQueue(order(policy, Limits())), dict[str, Request]()
    for name, priority, arrival in entries:
        requests[name] = a_request(name, [1], priority=priority, arrival=arrival)
        queue.add(requests[name])
    return queue, requests


def names(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


def test_fcfs_orders_by_arrival_and_ignores_priority() -> None:
    queue, _ = a_queue(Policy.FCFS, ("b", 0, 2), ("a", 5, 1), ("c", 0, 3))
    assert names(queue) == ["a", "b", "c"]


def test_those_put_back_are_first_in_the_order_given_and_the_latest_batch_before_older_ones() -> None:
    queue, _ = a_queue(Policy.FCFS, ("w", 0, 1))
    queue.put_back([a_request("c", [1]), a_request("d", [1])])
    queue.put_back([a_request("a", [1]), a_request("b", [1])])
    assert names(queue) == ["a", "b", "c", "d", "w"]


def test_under_priority_those_put_back_stay_behind_higher_classes() -> None:
    queue, _ = a_queue(Policy.PRIORITY, ("high", 0, 1), ("low", 2, 0))
    queue.put_back([a_request("back", [1], priority=2, arrival=9)])
    assert names(queue) == ["high", "back", "low"]


def test_removing_keeps_the_order_of_the_others() -> None:
    queue, requests = a_queue(Policy.FCFS, ("a", 0, 1), ("b", 0, 1), ("c", 0, 1))
    queue.remove(requests["b"])
    assert names(queue) == ["a", "c"]
    assert requests["b"] not in queue


def test_set_aside_requests_keep_their_place_but_are_not_offered() -> None:
    queue, requests = a_queue(Policy.FCFS, ("a", 0, 1), ("b", 0, 2))
    requests["a"].enter(Status.WAITING_FOR_GRAMMAR)
    assert [request.request_id for request in queue.ready()] == ["b"]
    requests["a"].enter(Status.WAITING)
    assert [request.request_id for request in queue.ready()] == ["a", "b"]
