"""What a step costs outside the model: counters and clocks of two moments."""

import math
import os
import sys
import threading
import time

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from benchmarks.compare import own_cost
from benchmarks.compare.own_cost import Moment, Phases

FORWARD_ONLY = {"gap": 0.0, "prepare": 0.0, "forward": 0.0, "sample": 0.0}


def moment(num_steps: float, cpu_s: dict[str, float], sums: dict[str, float]) -> Moment:
    return Moment(
        cpu_s=cpu_s,
        phases=Phases(num_steps=num_steps, sums=FORWARD_ONLY | sums, gaps={0.0001: num_steps, math.inf: num_steps}),
    )


def test_cost_is_the_services_time_and_what_the_worker_does_around_the_model():
    before = moment(100, {"gateway": 1.0, "scheduler_service": 2.0}, {"forward": 5.0})
    after = moment(
        200, {"gateway": 1.02, "scheduler_service": 2.01}, {"forward": 5.5, "prepare": 0.004, "sample": 0.006}
    )
    cost = own_cost.between(before, after, wall_s=1.0)
    assert cost.outside == pytest.approx(0.2 + 0.1 + 0.04 + 0.06)
    assert cost.wall == pytest.approx(10.0)
    assert cost.idle == pytest.approx(10.0 - 5.1)


def test_quantile_lies_within_its_bucket():
    counts = {0.1: 50.0, 0.2: 100.0, math.inf: 100.0}
    assert own_cost.quantile(counts, 0.25) == pytest.approx(0.05)
    assert own_cost.quantile(counts, 0.75) == pytest.approx(0.15)


def test_quantile_above_the_last_bound_is_that_bound():
    assert own_cost.quantile({0.1: 1.0, 0.2: 1.0, math.inf: 10.0}, 0.99) == 0.2


def test_phases_are_read_from_what_a_worker_exposes():
    registry = CollectorRegistry()
    duration = Histogram(own_cost.PHASES_METRIC, "parts", ["phase"], registry=registry, buckets=(0.001, 1.0))
    for phase in FORWARD_ONLY:
        for seconds in (0.0005, 0.5):
            duration.labels(phase).observe(seconds)
    found = own_cost.phases(generate_latest(registry).decode())
    assert found.num_steps == 2
    assert found.sums["forward"] == pytest.approx(0.5005)
    assert found.gaps == {0.001: 1.0, 1.0: 2.0, math.inf: 2.0}


@pytest.mark.parametrize(("service", "is_counted"), [(own_cost.WORKER, False), ("gateway", True)])
def test_computing_thread_of_a_worker_is_left_out(service: str, is_counted: bool):
    has_computed, ended = threading.Event(), threading.Event()

    def compute() -> None:
        end_s = time.thread_time() + 0.1
        while time.thread_time() < end_s:
            pass
        has_computed.set()
        ended.wait(30)

    before_s = sum(own_cost._thread_seconds(os.getpid(), service))
    thread = threading.Thread(target=compute)
    thread.start()
    assert has_computed.wait(30)
    spent_s = sum(own_cost._thread_seconds(os.getpid(), service)) - before_s
    ended.set()
    thread.join()
    assert (spent_s > 0.09) is is_counted


def test_service_is_the_module_or_the_program():
    assert own_cost._service([sys.executable, "-m", "gpu_worker", "--x"], "python") == "gpu_worker"
    assert own_cost._service(["/usr/bin/valkey-server unixsocket:/a/b"], "valkey-server") == "valkey-server"
