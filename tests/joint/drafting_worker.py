"""A paged worker that is also given drafts: it writes their K/V, keeps those that are right and adds one token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_worker.core import slot_digest
from scheduler_service.core.plan import NewRequest, Step
from tests.fakes.paged_worker import NUM_TOKEN_IDS, Mirror, PagedWorker, extended

RUBBISH = -1


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step brought: tokens of its sampling rows, and how many each has."""

    token_ids: list[int]
    num_tokens: list[int]


class DraftingWorker(PagedWorker):
    """Drafts do not travel on the wire yet, so they come beside the step: handle -> tokens."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._weights: dict[int, int] = {}  # of each handle's present epoch, for digests

    def digest(self) -> int:
        """Of the rows' slots, as a real worker computes it."""
        rows = [self.sequences[handle] for handle in self._handles]
        tables = [slot_digest.of_table(np.array(row.block_ids, dtype=np.uint32)) for row in rows]
        return slot_digest.of_rows(
            np.array([self._weights[handle] for handle in self._handles], dtype=np.uint32),
            np.array(tables, dtype=np.uint32),
            np.array([row.num_computed_tokens for row in rows], dtype=np.int64),
        )

    def run_with(
        self, step: Step, drafts: Mapping[int, Sequence[int]], *, is_faulty: bool = False, is_exact: bool = False
    ) -> Sampled:
        """All rows write before any of them reads, as in one forward pass.

        Slots are exactly what the scheduler believes, unless drafts of a step before were refused meanwhile.
        """
        for handle in step.released_handles:
            self.sequences.pop(handle, None)
        for new in step.new_requests:
            self._take(new)
        self._handles = step.handles or self._handles
        self._extend_tables(step)
        assert self.digest() == step.slots_digest or not is_exact
        counts = step.num_scheduled_tokens or [1] * len(self._handles)
        rows = [(self.sequences[handle], drafts.get(handle, ())) for handle in self._handles]
        for (sequence, drafted), count in zip(rows, counts, strict=True):
            self._write_row(sequence, count, drafted, is_faulty=is_faulty)
        sampled = Sampled([], [])
        for sequence, drafted in [] if is_faulty else rows:
            self._check_reads(sequence, drafted)
            if sequence.num_computed_tokens >= len(sequence.token_ids):
                kept = _verified(sequence, drafted)
                sequence.num_computed_tokens -= len(drafted) + 1 - len(kept)
                sequence.token_ids += kept
                sampled.token_ids.extend(kept)
                sampled.num_tokens.append(len(kept))
        return sampled

    def block(self, block_id: int) -> list[int | None]:
        """What the slots of a block hold."""
        first = block_id * self._block_size
        return [self._slots.get(slot) for slot in range(first, first + self._block_size)]

    def _take(self, new: NewRequest) -> None:
        super()._take(new)
        self._weights[new.handle] = slot_digest.weight(new.handle, new.epoch)

    def _write_row(self, sequence: Mirror, count: int, drafted: Sequence[int], *, is_faulty: bool) -> None:
        end = sequence.num_computed_tokens + count
        assert end <= len(sequence.token_ids) + len(drafted), f"{count} tokens are more than the worker knows"
        prefixes = _prefixes(sequence, drafted)
        for position in range(sequence.num_computed_tokens, end):
            self._slots[self._slot(sequence, position)] = RUBBISH if is_faulty else prefixes[position]
        sequence.num_computed_tokens = end

    def _check_reads(self, sequence: Mirror, drafted: Sequence[int]) -> None:
        """Attention reads every position before and including its own."""
        prefixes = _prefixes(sequence, drafted)
        for position in range(sequence.num_computed_tokens):
            found = self._slots.get(self._slot(sequence, position))
            assert found == prefixes[position], f"position {position} reads {found}: not what was written"


def _prefixes(sequence: Mirror, drafted: Sequence[int]) -> list[int]:
    """The hash up to and including each token, drafts behind those that are known."""
    sequence.advance_to(len(sequence.token_ids))
    prefixes = list(sequence.prefixes)
    for token_id in drafted:
        prefixes.append(extended(prefixes[-1], token_id))
    return prefixes


def _verified(sequence: Mirror, drafted: Sequence[int]) -> list[int]:
    """The drafts that the model would have said itself, and what it says behind them."""
    prefix, kept = sequence.prefixes[-1], list[int]()
    for token_id in drafted:
        kept.append(prefix % NUM_TOKEN_IDS)
        if kept[-1] != token_id:
            return kept
        prefix = extended(prefix, token_id)
    return [*kept, prefix % NUM_TOKEN_IDS]
