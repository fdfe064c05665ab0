"""Settings that cannot work are refused at once, with what would."""

from typing import Any

import pytest

from gpu_worker.config import Compute, KVMemory, WorkerConfig
from octavo import config


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        (KVMemory, {"block_size": 12}, "block_size is 12; choose one of 8, 16"),
        (KVMemory, {"num_blocks": 1}, "block 0 stores nothing"),
        (KVMemory, {"memory_utilization": 0.0}, "above 0 and at most 0.95"),
        (KVMemory, {"memory_utilization": 1.0}, "above 0 and at most 0.95"),
        (Compute, {"max_num_batched_tokens": 0}, "must be positive"),
        (Compute, {"max_model_len": 1}, "a prompt and a token take 2"),
        (Compute, {"num_threads": 0}, "must be positive"),
        (WorkerConfig, {"worker_id": ""}, "worker_id is empty"),
    ],
)
def test_what_cannot_work_is_refused(group: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group(**values)


def test_flags_and_variables_fill_it() -> None:
    settings = config.load(
        WorkerConfig, "WORKER", argv=["--dtype", "float32"], environ={"OCTAVO_WORKER_BLOCK_SIZE": "32"}
    )
    assert (settings.compute.dtype, settings.kv_memory.block_size, settings.kv_memory.num_blocks) == (
        "float32",
        32,
        None,
    )
