"""Every service is replaced, one after another, while clients ask all the time: none of them notices but by waiting."""

import time
from collections.abc import Iterator

import pytest

from tests.compose.stack import Stack, inspect
from tests.e2e import crowd
from tests.e2e.crowd import MAX_TOKENS, Ask, Crowd

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1200)]

SERVICES = ("redis", "gpu_worker", "scheduler", "kvcache", "gateway")
QUIET_S = 10  # after each, in which clients must be served as before


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    stack = Stack.on_free_ports("tests/compose/float32.yaml")
    try:
        stack.compose("up", "--build", "--detach", "--wait", "--wait-timeout", "600")
        yield stack
    finally:
        if request.session.testsfailed:
            print(stack.compose("logs", "--no-color", "--tail", "200"))
        stack.compose("down", "--volumes", "--timeout", "60")


@pytest.fixture(scope="module")
def kinds(stack: Stack) -> Iterator[dict[str, Ask]]:
    with crowd.kinds_of_clients(stack.http_port, stack.grpc_port, num_retries=12) as kinds:
        yield kinds


@pytest.fixture(scope="module")
def undisturbed(kinds: dict[str, Ask]) -> dict[str, str]:
    return crowd.undisturbed_answers(kinds)


@pytest.fixture
def clients(kinds: dict[str, Ask]) -> Iterator[Crowd]:
    clients = Crowd(kinds)
    clients.start()
    yield clients
    clients.stop()


def container_of(stack: Stack, service: str) -> str:
    (container,) = (container for container in stack.services() if container["Service"] == service)
    return str(container["ID"])


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_replaced_under_load_and_no_request_fails(
    stack: Stack, undisturbed: dict[str, str], clients: Crowd, service: str
) -> None:
    time.sleep(QUIET_S)
    old, began_s = container_of(stack, service), time.monotonic()
    stack.compose("up", "--detach", "--force-recreate", "--wait", service)
    new, took_s = container_of(stack, service), time.monotonic() - began_s
    time.sleep(QUIET_S)
    replaced_s = time.monotonic() - QUIET_S / 2
    clients.stop()
    answers = clients.since(began_s)
    longest_s = max(answer.longest_wait_s for answer in answers)
    print(f"{service}: replaced in {took_s:.1f} s, longest wait of a client {longest_s:.1f} s, {len(answers)} answers")
    assert old != new
    assert inspect(new)[0]["State"]["Running"]
    assert not clients.failures
    assert all(answer.num_tokens == MAX_TOKENS for answer in answers)
    assert [answer.text for answer in answers] == [undisturbed[answer.prompt] for answer in answers]
    assert clients.since(replaced_s)
