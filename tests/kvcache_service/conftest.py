"""Real Redis-compatible servers per test, which tests may kill and start again."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kvcache_service.real_redis import RealCluster, RealRedis, RealSentinel
from tests.kvcache_service.service import Service, serving

__all__ = ["RealRedis"]


@pytest.fixture
def real_redis(tmp_path: Path) -> Iterator[RealRedis]:
    server = RealRedis(tmp_path / "redis")
    server.start()
    yield server
    server.close()


@pytest.fixture
def real_sentinel(tmp_path: Path) -> Iterator[RealSentinel]:
    servers = RealSentinel(tmp_path)
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture
def real_cluster(tmp_path: Path) -> Iterator[RealCluster]:
    servers = RealCluster(tmp_path)
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """The service on a real gRPC port, without Redis."""
    async with serving() as running:
        yield running
