"""Which worker gets a request."""

from scheduler_service.core.placement import Candidate, choose


def a_candidate(worker_id: str, uncached: int, queued: int, requests: int = 0) -> Candidate:
    return Candidate(worker_id=worker_id, num_uncached_tokens=uncached, num_queued_tokens=queued, num_requests=requests)


def test_a_cached_prefix_outweighs_a_shorter_queue() -> None:
    cold, warm = a_candidate("cold", 1000, 0), a_candidate("warm", 100, 500)
    assert choose([cold, warm], (0.0, 0.0)) is warm


def test_a_long_queue_outweighs_a_cached_prefix() -> None:
    cold, warm = a_candidate("cold", 1000, 0), a_candidate("warm", 100, 5000)
    assert choose([cold, warm], (0.9, 0.9)) is cold


def test_of_two_drawn_among_equals_the_less_occupied_is_taken() -> None:
    equals = [a_candidate("a", 10, 0, 5), a_candidate("b", 10, 0, 1), a_candidate("c", 10, 0, 0)]
    assert choose(equals, (0.0, 0.5)).worker_id == "b"
    assert choose(equals, (0.5, 0.0)).worker_id == "b"
    assert choose(equals, (0.0, 0.0)).worker_id == "a"
