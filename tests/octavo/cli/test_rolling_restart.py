"""Which services a rolling restart restarts, in which order, and what it says of each."""

import pytest

from octavo.cli.control import Refused
from octavo.cli.rolling_restart import selected

KNOWN = ["gateway", "scheduler", "worker-0", "worker-1", "kvcache", "redis"]


@pytest.mark.parametrize(("asked", "restarted"), [
    ([], ["worker-0", "worker-1", "scheduler", "kvcache", "gateway"]),
    (["gateway"], ["gateway"]),
    (["gateway", "scheduler"], ["scheduler", "gateway"]),
    (["worker"], ["worker-0", "worker-1"]),
    (["worker-1"], ["worker-1"]),
    (["worker-1", "worker", "worker-1"], ["worker-0", "worker-1"]),
    (["redis"], ["redis"]),
])  # fmt: skip
def test_services_are_restarted_in_order_and_all_but_redis_if_none_is_named(asked: list[str], restarted: list[str]):
    assert selected(asked, KNOWN) == restarted


def test_unknown_service_names_the_nearest_and_those_there_are():
    with pytest.raises(
        Refused, match=r"^no service workr; did you mean worker\?; there are gateway, scheduler, worker"
    ):
        selected(["gateway", "workr"], KNOWN)


def test_redis_of_somebody_else_is_no_service_here():
    with pytest.raises(Refused, match="no service redis"):
        selected(["redis"], [name for name in KNOWN if name != "redis"])
