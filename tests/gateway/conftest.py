"""Fixtures of the gateway's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, running_stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A gateway that serves the tiny model."""
    async with running_stack(tmp_path, FakeScheduler()) as made:
        yield made
