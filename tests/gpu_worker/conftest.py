"""Models for the worker's tests, made once per session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.model_runner import ModelRunner
from tests.gpu_worker import tiny_models

MakeRunner = Callable[..., ModelRunner]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two threads beside a busy neighbour are many times slower than one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gqa_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gqa_tied")
    tiny_models.save_llama(folder, "gqa_tied")
    return folder


@pytest.fixture(scope="session")
def gqa_oracle(gqa_folder: Path) -> Any:
    return tiny_models.load_oracle(gqa_folder)


@pytest.fixture
def make_runner(gqa_folder: Path) -> MakeRunner:
    """A fresh runner over the tiny model with grouped heads."""

    def make(**settings: Any) -> ModelRunner:
        return tiny_models.ready(tiny_models.files_of(gqa_folder), **settings).runner

    return make


@pytest.fixture
def runner(make_runner: MakeRunner) -> ModelRunner:
    return make_runner()
