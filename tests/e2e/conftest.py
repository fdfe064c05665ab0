"""One oracle for all end-to-end tests, and stacks that several of them share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.oracle import Oracle
from tests.e2e.stack import Stack


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker, small budget: long prompts come in chunks."""
    folder: Path = tmp_path_factory.mktemp("stack")
    with Stack(folder, "--max-num-batched-tokens", "64") as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starting processes and generating with transformers takes its time on a busy machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
