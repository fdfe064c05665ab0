"""A running scheduler with its KV cache service, for the tests of the shell."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.scheduler_service import stack as stacks
from tests.scheduler_service.stack import Stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stacks.started(tmp_path) as started:
        yield started
