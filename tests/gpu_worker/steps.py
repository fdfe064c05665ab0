"""Steps for tests, written shortly. No torch."""

from typing import Any

import numpy as np

from gpu_worker.core.step import Ids, NewRequest, Sampling, Step


def packed(values: list[int]) -> Ids:
    return np.array(values, dtype=np.uint32)


def new_request(handle: int, token_ids: list[int], block_ids: list[int], **changes: Any) -> NewRequest:
    values: dict[str, Any] = {
        "handle": handle, "request_id": f"r{handle}", "epoch": 0, "token_ids": packed(token_ids),
        "num_prompt_tokens": len(token_ids), "block_ids": packed(block_ids), "num_computed_tokens": 0,
        "sampling": Sampling(),
    }  # fmt: skip
    return NewRequest(**(values | changes))


def step(seq: int, rows: dict[int, int] | None = None, **changes: Any) -> Step:
    """A step over {handle: tokens}; without rows those of the step before, one token each."""
    nothing = packed([])
    values: dict[str, Any] = {
        "session": 1, "step": seq, "seq": seq, "acked_seq": seq - 1, "released_handles": nothing, "new_requests": (),
        "handles": packed(list(rows or {})), "num_scheduled_tokens": packed(list((rows or {}).values())),
        "new_block_rows": nothing, "num_new_blocks": nothing, "new_block_ids": nothing,
    }  # fmt: skip
    return Step(**(values | changes))
