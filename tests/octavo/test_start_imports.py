"""What a process imports before it can say anything decides how soon it answers and how much memory it holds."""

import subprocess
import sys

import pytest


def imported_by(*command: str) -> set[str]:
    """The top-level packages that a process loads until it has printed its help."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", *command, "--help"], capture_output=True, text=True, check=True
    )
    lines = [line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line[2].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize(
    ("command", "needed", "unwanted"),
    [
        (("gateway",), "transformers", {"torch", "gguf"}),
        (("scheduler_service",), "grpc", {"torch", "numpy", "transformers", "huggingface_hub"}),
        (("kvcache_service",), "redis", {"torch", "transformers", "huggingface_hub"}),
        (("gpu_worker",), "grpc", {"torch", "transformers", "tokenizers", "gguf", "huggingface_hub"}),
        (("octavo.cli", "serve"), "gpu_worker", {"torch", "transformers", "tokenizers", "huggingface_hub", "numpy"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_process_loads_only_what_it_needs(command: tuple[str, ...], needed: str, unwanted: set[str]) -> None:
    imported = imported_by(*command)
    assert needed in imported
    assert not imported & unwanted
