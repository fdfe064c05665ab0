"""What a journal asks to be written, and what a restart makes of whatever was."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from kvcache_service import metadata_journal
from kvcache_service import metadata_record as layout
from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.pools import PoolKey, Pools
from kvcache_service.core.restore import Opening
from kvcache_service.metadata_journal import PIECE_KEYS, Author, Journal
from scheduler_service.core import grant_log
from tests.fakes.scripted_redis import ScriptedRedis
from tests.kvcache_service.journal_machine import JournalMachine
from tests.kvcache_service.rig import family

KEY = PoolKey(pool_id="w1", incarnation=5, session=1)
KEYS = layout.pool_keys("kvcache", "w1")
AUTHOR = Author("kvcache", 7, b"check", lambda now_s: now_s)


def test_whatever_was_written_nothing_stale_is_found_after_a_restart(monkeypatch: pytest.MonkeyPatch):
    """Pieces of two keys, notes of eight, and a scheduler that remembers two plans: every bound is met all the time."""
    monkeypatch.setattr(metadata_journal, "PIECE_KEYS", 2)
    monkeypatch.setattr(metadata_journal, "MIN_NOTED_KEYS", 8)
    monkeypatch.setattr(grant_log, "MAX_PLANS", 2)
    run_state_machine_as_test(
        JournalMachine,
        settings=settings(
            max_examples=200, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


class Written:
    """A pool, its journal, and a Redis in memory."""

    def __init__(self, num_blocks: int = 101) -> None:
        opening = Opening(scheduler_incarnation=1, number=1)
        self.pool = Pools().open(KEY, num_blocks, fingerprint=Fingerprint(), tables=[], opening=opening)
        self.journal = Journal(self.pool, AUTHOR, now_s=10.0)
        self.redis = ScriptedRedis()
        self.handle = 0

    def prefill(self, num_tokens: int, now_s: float = 11.0) -> None:
        self.handle += 1
        manager = self.pool.manager
        manager.declare(self.handle, family(chr(65 + self.handle), num_tokens))
        manager.admit(self.handle)
        manager.ack(manager.step)
        self.pool.step += 1
        self.journal.note(manager.take_events(), now_s)

    def write(self, now_s: float = 12.0) -> bool:
        """One piece; false if there was none."""
        if not self.journal.take():
            return False
        assert self.journal.in_hand is not None
        self.journal.done(self.redis.run(self.journal.in_hand), now_s)
        return True

    @property
    def step(self) -> int:
        return int(self.redis.hashes[KEYS.meta][b"step"])

    @property
    def num_blocks(self) -> int:
        return len(self.redis.hashes.get(KEYS.blocks, {}))


def test_a_small_change_is_one_write_that_names_its_plan():
    written = Written()
    assert written.write()
    written.prefill(48)
    assert written.write()
    assert (written.step, written.num_blocks, written.journal.is_clean) == (1, 3, True)
    assert not written.write()


def test_of_a_large_change_only_the_last_piece_names_the_plan():
    written = Written(num_blocks=1001)
    written.write()
    written.prefill(16 * (2 * PIECE_KEYS + 1))
    for num_blocks in (PIECE_KEYS, 2 * PIECE_KEYS):
        written.write()
        assert (written.step, written.num_blocks) == (0, num_blocks)
    written.write()
    assert (written.step, written.num_blocks, written.journal.is_clean) == (1, 2 * PIECE_KEYS + 1, True)


def test_a_snapshot_takes_little_of_what_changed_meanwhile_with_it():
    written = Written(num_blocks=1001)
    written.prefill(16 * PIECE_KEYS)
    written.write()
    written.prefill(48)
    written.write()
    assert (written.step, written.num_blocks, written.journal.is_clean) == (2, PIECE_KEYS + 3, True)


def test_what_changed_a_lot_meanwhile_follows_the_snapshot_that_names_the_plan_it_began_at():
    written = Written(num_blocks=1001)
    written.prefill(16 * PIECE_KEYS)
    written.write()
    written.prefill(16 * (PIECE_KEYS + 1))
    written.write()
    assert (written.step, written.num_blocks, written.journal.is_clean) == (1, PIECE_KEYS, False)
    while written.write():
        pass
    assert (written.step, written.num_blocks, written.journal.is_clean) == (2, 2 * PIECE_KEYS + 1, True)


def test_the_notes_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metadata_journal, "MIN_NOTED_KEYS", 8)
    written = Written(num_blocks=5)
    written.write()
    for _ in range(9):
        written.prefill(48)
        written.pool.manager.free(written.handle, 0)
    assert written.journal.num_pending <= 11
    while written.write():
        pass
    assert (written.step, written.num_blocks) == (9, len(written.pool.manager.pool.cache))


def test_a_loss_is_noticed_by_the_next_write_and_answered_with_a_snapshot():
    written = Written()
    written.write()
    written.prefill(48)
    written.write()
    written.redis.flush()
    written.prefill(48)
    written.write()
    assert not written.redis.hashes
    while written.write():
        pass
    assert (written.step, written.num_blocks) == (2, 6)


def test_the_lag_is_that_of_the_oldest_change_that_is_not_known_to_be_written():
    written = Written()
    journal = written.journal
    assert journal.lag_s(11.0) == 1.0
    journal.take()
    journal.note((), 12.0)
    assert journal.lag_s(13.0) == 3.0
    journal.start_over(13.0)  # the write failed
    assert journal.lag_s(14.0) == 4.0
    while written.write():
        pass
    assert journal.lag_s(15.0) == 0.0
    journal.note((), 20.0)
    journal.take()
    journal.note((), 21.0)
    assert journal.in_hand is not None
    journal.done(written.redis.run(journal.in_hand), 22.0)
    assert journal.lag_s(22.0) == 1.0


@pytest.mark.parametrize("pool_id", ["w1", "a{b}c", "worker-7.example", "}"])
def test_all_keys_of_a_pool_have_one_hash_tag(pool_id: str):
    keys = [*layout.pool_keys("kv", pool_id).all, layout.staged_key("kv", pool_id, 7)]
    assert len({key.partition("{")[2].partition("}")[0] for key in keys}) == 1


def test_the_layout_is_that_of_the_documentation():
    """docs/metadata.md: change one, change both."""
    written = Written()
    written.write()
    written.prefill(32)
    written.write()
    (first, second) = written.pool.manager.prefix_keys(family("B", 32))
    blocks = written.redis.hashes[KEYS.blocks]
    assert blocks[first] == bytes(16) + bytes(4) + bytes(16) + b"\x01\0\0\0"
    assert blocks[second] == first[:16] + b"\x01\0\0\0" + bytes(16) + b"\x02\0\0\0"
    assert written.redis.hashes[KEYS.tenants] == {bytes(16): (32).to_bytes(8, "little") + bytes(24)}
    assert written.redis.hashes[KEYS.meta][b"schema"] == b"2"
    assert layout.pin_value([1, 258], 1.5) == (1500).to_bytes(8, "little") + b"\x01\0\0\0\x02\x01\0\0"
    assert layout.blob([(b"f", b"value"), (b"gone", b"")]) == b"\x01\0\x05\0\0\0fvalue" + b"\x04\0\0\0\0\0gone"
