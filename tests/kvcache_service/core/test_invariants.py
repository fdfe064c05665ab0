"""What a pool promises, whatever is done to it in whatever order."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kvcache_service.core.pool_machine import PoolMachine

ANY = settings(deadline=None, suppress_health_check=list(HealthCheck))


def test_a_pool_keeps_its_promises_over_a_few_hundred_random_histories():
    run_state_machine_as_test(PoolMachine, settings=settings(ANY, max_examples=300, stateful_step_count=25))


@pytest.mark.slow
def test_a_pool_keeps_its_promises_over_thousands_of_random_histories():
    run_state_machine_as_test(PoolMachine, settings=settings(ANY, max_examples=4000, stateful_step_count=30))
