"""What a pool promises, whatever its scheduler does."""

from hypothesis import HealthCheck, Phase, settings

from tests.kvcache_service.core.pool_machine import PoolMachine

TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=80,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
