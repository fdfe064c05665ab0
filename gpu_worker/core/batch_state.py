"""The worker's mirror of its running requests: token ids, block tables and positions, in arrays with a slot each.

A mirror may be thrown away at any time; the scheduler owns the truth. Knows no tensors and no K/V contents.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.core import slot_digest
from gpu_worker.core.step import BadStep, Ids, NewRequest, Sampling, SlotsDiffer, Step
from gpu_worker.core.token_counts import TokenCounts

Indices = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Request:
    """What of a request is not in the arrays."""

    handle: int
    request_id: str
    epoch: int
    num_prompt_tokens: int
    sampling: Sampling
    counts: TokenCounts | None  # None without penalties


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a step, in its order: slots of the mirror, and tokens to advance."""

    slots: Indices
    num_scheduled_tokens: Indices


class BatchState:
    """Every request that the scheduler may name by its handle."""

    def __init__(self, *, block_size: int, num_blocks: int, max_model_len: int, vocab_size: int) -> None:
        self.block_size = block_size
        self._num_pool_blocks = num_blocks
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._slot_of: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._row_handles: list[int] = []
        self._row_slots: Indices | None = None  # of _row_handles, while they are known to be right
        self.requests: list[Request | None] = []
        self.token_ids = np.zeros((0, 0), dtype=np.int32)  # [slot, position]
        self.block_table = np.zeros((0, 0), dtype=np.int32)  # [slot, position // block_size]
        self.num_tokens = np.zeros(0, dtype=np.int64)  # known, sampled ones included
        self.num_computed_tokens = np.zeros(0, dtype=np.int64)
        self.num_blocks = np.zeros(0, dtype=np.int64)
        self.is_plain = np.zeros(0, dtype=np.bool_)
        self._weights = np.zeros(0, dtype=np.uint32)  # of slot_digest
        self._table_digests = np.zeros(0, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self._slot_of)

    def apply(self, step: Step) -> Rows:
        """Take over what `step` changes and return its rows. After BadStep call `drop` with the same step.

        Raises SlotsDiffer when a request is not here, or not as the scheduler believes.
        """
        if step.defect:
            raise BadStep(f"step {step.seq} cannot be read: {step.defect}")
        self._release(step.released_handles)
        for request in step.new_requests:
            self._add(request)
        rows = Rows(slots=self._slots_of_rows(step), num_scheduled_tokens=self._num_scheduled_tokens(step))
        self._grow(step, rows.slots)
        self._compare(step, rows.slots)
        self._check(rows)
        return rows

    def drop(self, step: Step) -> None:
        """Forget every request of a step that did not run: the scheduler sends them again, whole."""
        self._release(step.released_handles)
        if len(step.handles):
            self._row_handles = step.handles.tolist()
        for handle in (*(request.handle for request in step.new_requests), *self._row_handles):
            self._forget(handle)
        self._row_slots = None

    def advance(self, rows: Rows, sampled_slots: Indices, sampled_token_ids: Indices) -> None:
        """The rows ran: move their positions and feed the sampled tokens back."""
        self.num_computed_tokens[rows.slots] += rows.num_scheduled_tokens
        if not len(sampled_slots):
            return
        self._widen(len(self.requests), int(self.num_tokens[sampled_slots].max()) + 1)
        self.token_ids[sampled_slots, self.num_tokens[sampled_slots]] = sampled_token_ids
        self.num_tokens[sampled_slots] += 1
        for slot in sampled_slots[~self.is_plain[sampled_slots]].tolist():
            if (counts := self.request(slot).counts) is not None:
                counts.add(int(self.token_ids[slot, self.num_tokens[slot] - 1]))

    def reset(self) -> None:
        """Forget every request."""
        for handle in list(self._slot_of):
            self._forget(handle)
        self._row_handles = []
        self._row_slots = None

    def request(self, slot: int) -> Request:
        """The request in a slot that is in use."""
        request = self.requests[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def _release(self, handles: Ids) -> None:
        for handle in handles.tolist():
            self._forget(handle)
        if len(handles):
            self._row_slots = None

    def _forget(self, handle: int) -> None:
        slot = self._slot_of.pop(handle, None)
        if slot is not None:  # None: it went with a step that did not run
            self.requests[slot] = None
            self._free_slots.append(slot)

    def _add(self, new: NewRequest) -> None:
        self._check_new(new)
        self._forget(new.handle)
        self._row_slots = None
        num_tokens, num_blocks = len(new.token_ids), len(new.block_ids)
        slot = self._take_slot(num_tokens, num_blocks)
        self._slot_of[new.handle] = slot
        self.token_ids[slot, :num_tokens] = new.token_ids
        self.block_table[slot, :num_blocks] = new.block_ids
        self.num_tokens[slot] = num_tokens
        self.num_blocks[slot] = num_blocks
        self.num_computed_tokens[slot] = new.num_computed_tokens
        self.is_plain[slot] = new.sampling.is_plain
        self._weights[slot] = slot_digest.weight(new.handle, new.epoch)
        self._table_digests[slot] = slot_digest.of_table(new.block_ids)
        tokens = self.token_ids[slot, :num_tokens]
        split = new.num_prompt_tokens
        self.requests[slot] = Request(
            handle=new.handle,
            request_id=new.request_id,
            epoch=new.epoch,
            num_prompt_tokens=split,
            sampling=new.sampling,
            counts=TokenCounts(tokens[:split], tokens[split:]) if new.sampling.has_penalties else None,
        )

    def _check_new(self, new: NewRequest) -> None:
        name = f"request {new.handle} ({new.request_id})"
        live = self._slot_of.get(new.handle)
        if live is not None and self.request(live).epoch >= new.epoch:
            raise SlotsDiffer(f"{name} came with epoch {new.epoch}, epoch {self.request(live).epoch} is running")
        num_tokens = len(new.token_ids)
        if not 0 < new.num_prompt_tokens <= num_tokens <= self.max_model_len:
            raise BadStep(
                f"{name} has {num_tokens} tokens, {new.num_prompt_tokens} of them prompt; max_model_len is "
                f"{self.max_model_len}"
            )
        if not 0 <= new.num_computed_tokens < num_tokens:
            raise BadStep(f"{name} starts at {new.num_computed_tokens} of {num_tokens} tokens")
        if new.token_ids.max() >= self._vocab_size:
            raise BadStep(f"{name} has token id {new.token_ids.max()}; the model has {self._vocab_size}")
        sampling = new.sampling
        strangest = max((*sampling.logit_bias, *sampling.ending_token_ids), default=0)
        if strangest >= self._vocab_size:
            raise BadStep(f"{name} biases or ends on token id {strangest}; the model has {self._vocab_size}")
        if not sampling.repetition_penalty > 0 or sampling.temperature < 0:
            raise BadStep(f"{name} has a repetition_penalty that is not positive or a negative temperature")
        self._check_blocks(new.block_ids)

    def _check_blocks(self, block_ids: Ids) -> None:
        if len(block_ids) and not 0 < block_ids.min() <= block_ids.max() < self._num_pool_blocks:
            raise BadStep(
                f"block ids {block_ids.min()} to {block_ids.max()} are not all in 1..{self._num_pool_blocks - 1}"
            )

    def _slots_of_rows(self, step: Step) -> Indices:
        if len(step.handles):
            self._row_handles = step.handles.tolist()
            self._row_slots = None
        if self._row_slots is None:
            if not self._row_handles:
                raise BadStep(f"step {step.seq} has no rows")
            if len(set(self._row_handles)) < len(self._row_handles):
                raise BadStep(f"step {step.seq} names a request twice")
            try:
                slots = [self._slot_of[handle] for handle in self._row_handles]
            except KeyError as unknown:
                raise SlotsDiffer(
                    f"step {step.seq} names request {unknown}, which is not here; after a preemption or a fault it "
                    "must come whole"
                ) from None
            self._row_slots = np.array(slots, dtype=np.int64)
        return self._row_slots

    def _num_scheduled_tokens(self, step: Step) -> Indices:
        num_rows = len(self._row_handles)
        if not len(step.num_scheduled_tokens):
            return np.ones(num_rows, dtype=np.int64)
        if len(step.num_scheduled_tokens) != num_rows:
            raise BadStep(f"step {step.seq} has {num_rows} rows and {len(step.num_scheduled_tokens)} token counts")
        return step.num_scheduled_tokens.astype(np.int64)

    def _grow(self, step: Step, slots: Indices) -> None:
        """Append the new blocks of the rows that get some."""
        rows = step.new_block_rows.tolist()
        counts = step.num_new_blocks.tolist() or [1] * len(rows)
        if len(counts) != len(rows) or sum(counts) != len(step.new_block_ids) or max(rows, default=0) >= len(slots):
            raise BadStep(
                f"step {step.seq} gives {len(step.new_block_ids)} blocks to rows {rows} in portions {counts}, "
                f"of {len(slots)} rows"
            )
        self._check_blocks(step.new_block_ids)
        taken = 0
        for row, count in zip(rows, counts, strict=True):
            slot = int(slots[row])
            end = int(self.num_blocks[slot]) + count
            self._widen(len(self.requests), end * self.block_size)
            block_ids = step.new_block_ids[taken : taken + count]
            self.block_table[slot, end - count : end] = block_ids
            self.num_blocks[slot] = end
            self._table_digests[slot] = slot_digest.of_table(block_ids, int(self._table_digests[slot]))
            taken += count

    def _compare(self, step: Step, slots: Indices) -> None:
        """The scheduler believes the same of every row. If all came whole, differing is an error of one of us."""
        if step.slots_digest is None:
            return
        found = slot_digest.of_rows(self._weights[slots], self._table_digests[slots], self.num_computed_tokens[slots])
        if found != step.slots_digest:
            problem = f"step {step.seq} has digest {step.slots_digest:08x} over {len(slots)} rows, {found:08x} is here"
            raise BadStep(problem) if len(step.new_requests) == len(slots) else SlotsDiffer(problem)

    def _check(self, rows: Rows) -> None:
        """Every row moves, stays within its known tokens, and has the blocks for it."""
        slots, num_new = rows.slots, rows.num_scheduled_tokens
        ends = self.num_computed_tokens[slots] + num_new
        short = self.num_blocks[slots] * self.block_size < ends
        bad = (num_new < 1) | (ends > self.num_tokens[slots]) | (ends > self.max_model_len) | short
        if bad.any():
            row = int(bad.argmax())
            slot = slots[row]
            raise BadStep(
                f"row {row} (request {self.request(int(slot)).handle}) moves {num_new[row]} from "
                f"{self.num_computed_tokens[slot]}; it has {self.num_tokens[slot]} tokens, blocks for "
                f"{self.num_blocks[slot] * self.block_size}, and max_model_len is {self.max_model_len}"
            )

    def _take_slot(self, num_tokens: int, num_blocks: int) -> int:
        if not self._free_slots:
            num_slots = len(self.requests)
            self._widen(max(16, 2 * num_slots), 1)
            self._free_slots = list(range(len(self.requests) - 1, num_slots - 1, -1))
        self._widen(len(self.requests), max(num_tokens, num_blocks * self.block_size))
        return self._free_slots.pop()

    def _widen(self, num_slots: int, num_tokens: int) -> None:
        """Make room for `num_slots` slots of `num_tokens` tokens, and then some."""
        if num_slots > len(self.requests):
            added = num_slots - len(self.requests)
            self.requests += [None] * added
            self.num_tokens = np.pad(self.num_tokens, (0, added))
            self.num_computed_tokens = np.pad(self.num_computed_tokens, (0, added))
            self.num_blocks = np.pad(self.num_blocks, (0, added))
            self.is_plain = np.pad(self.is_plain, (0, added))
            self._weights = np.pad(self._weights, (0, added))
            self._table_digests = np.pad(self._table_digests, (0, added))
        if num_slots > self.token_ids.shape[0] or num_tokens > self.token_ids.shape[1]:
            width = max(self.token_ids.shape[1], self.block_size)
            while width < num_tokens:
                width *= 2
            self.token_ids = _enlarged(self.token_ids, (num_slots, width))
            self.block_table = _enlarged(self.block_table, (num_slots, width // self.block_size))


def _enlarged(array: npt.NDArray[np.int32], shape: tuple[int, int]) -> npt.NDArray[np.int32]:
    larger = np.zeros(shape, dtype=np.int32)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger
