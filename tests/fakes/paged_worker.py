"""A worker without a model: runs scheduler steps on a pool of slots and checks that whatever it reads was written.

A slot holds the hash of the whole prefix up to its token, as K/V would depend on it; the next token is a function of
that hash, so outputs are the same for every batch, chunking and restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.plan import NewRequest, Step

NUM_TOKEN_IDS = 50_000


def extended(prefix: int, token_id: int) -> int:
    """The hash of a prefix that is one token longer."""
    return (prefix * 1_000_003 + token_id + 1) % (2**61 - 1)


def continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What an undisturbed run answers to a prompt."""
    prefix, answer = 0, list[int]()
    for token_id in prompt:
        prefix = extended(prefix, token_id)
    for _ in range(num_tokens):
        answer.append(prefix % NUM_TOKEN_IDS)
        prefix = extended(prefix, answer[-1])
    return answer


@dataclass(slots=True)
class Mirror:
    """The worker's mirror of one request."""

    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    prefixes: list[int] = field(default_factory=list)  # hash up to and including each token

    def advance_to(self, num_tokens: int) -> None:
        for token_id in self.token_ids[len(self.prefixes) : num_tokens]:
            self.prefixes.append(extended(self.prefixes[-1] if self.prefixes else 0, token_id))


class PagedWorker:
    """Slots outlive requests; only a new incarnation starts with none."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[int, int] = {}
        self._handles: Sequence[int] = ()
        self.sequences: dict[int, Mirror] = {}

    def run(self, step: Step, *, is_faulty: bool = False) -> list[int]:
        """One token for each row that samples; a faulty step leaves rubbish in its slots and brings nothing."""
        for handle in step.released_handles:
            self.sequences.pop(handle, None)
        for new in step.new_requests:
            self._take(new)
        self._handles = step.handles or self._handles
        self._extend_tables(step)
        counts = step.num_scheduled_tokens or [1] * len(self._handles)
        rows = [(self.sequences[handle], count) for handle, count in zip(self._handles, counts, strict=True)]
        for sequence, count in rows:
            self._write(sequence, count, is_faulty=is_faulty)
        return [] if is_faulty else [token for sequence, _ in rows if (token := self._sample(sequence)) is not None]

    def _take(self, new: NewRequest) -> None:
        self.sequences[new.handle] = Mirror(list(new.token_ids), list(new.block_ids), new.num_computed_tokens)

    def _extend_tables(self, step: Step) -> None:
        ids = iter(step.new_block_ids)
        for row, count in zip(step.new_block_rows, step.num_new_blocks or [1] * len(step.new_block_rows), strict=True):
            self.sequences[self._handles[row]].block_ids += [next(ids) for _ in range(count)]

    def _slot(self, sequence: Mirror, position: int) -> int:
        return sequence.block_ids[position // self._block_size] * self._block_size + position % self._block_size

    def _write(self, sequence: Mirror, count: int, *, is_faulty: bool) -> None:
        end = sequence.num_computed_tokens + count
        assert end <= len(sequence.token_ids), f"{count} tokens scheduled, {len(sequence.token_ids)} known"
        sequence.advance_to(end)
        for position in range(sequence.num_computed_tokens, end):
            self._slots[self._slot(sequence, position)] = -1 if is_faulty else sequence.prefixes[position]
        sequence.num_computed_tokens = end

    def _sample(self, sequence: Mirror) -> int | None:
        for position in range(sequence.num_computed_tokens):
            found = self._slots.get(self._slot(sequence, position))
            assert found == sequence.prefixes[position], f"position {position} reads {found}: not what was written"
        if sequence.num_computed_tokens < len(sequence.token_ids):
            return None
        sequence.token_ids.append(sequence.prefixes[-1] % NUM_TOKEN_IDS)
        return sequence.token_ids[-1]
