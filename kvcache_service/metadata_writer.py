"""The task that writes to Redis what the journals note: gathers, writes in rounds, and outlives a Redis that dies."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kvcache_service import metadata_reader as reader
from kvcache_service import metadata_record as record
from kvcache_service import metadata_scripts as scripts
from kvcache_service import redis_client
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.metadata_journal import EXPIRY_S, PIECE_KEYS, Author, Journal, Write
from kvcache_service.redis_client import FAILURES, answered
from octavo import logs

GATHER_S = 0.02  # how long changes are gathered before they are written
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
REFRESH_S = EXPIRY_S / 4  # a pool without changes is written this often
MAX_WRITES = 64  # in one pipeline

_log = logs.get(__name__)


@dataclass(slots=True)
class Owed:
    """What is to be written beside the journals."""

    closed: set[str] = field(default_factory=set)  # pools whose keys are to go
    public: dict[str, bytes] | None = None  # the public prefixes, packed, if they changed
    is_public_unread: bool = False  # what is recorded of them is to be read first
    is_public_in_doubt: bool = False  # whether they are still recorded is to be looked at
    is_sweep_due: bool = False  # the keys of every pool that has no journal are to go


class MetadataWriter:
    """Writes while `run` runs. Whoever changes `journals` or `owed` calls `wake`."""

    def __init__(self, url: str, author: Author) -> None:
        self.client = redis_client.client(url)
        self.journals: dict[str, Journal] = {}  # by pool id
        self.owed = Owed()
        self.public = PublicPrefixes()  # set before the service serves
        self.is_connected = False
        self.num_errors = 0
        self.round_done = asyncio.Event()  # set, and made anew, after every round
        self._url = url
        self._author = author
        self._public_key = record.public_key(author.kvcache_id)
        self._was_lost = False
        self._num_rounds = 0
        self._listed: set[str] = set()  # pools that the directory has
        self._changed = asyncio.Event()
        self._leaving = asyncio.Event()

    def wake(self) -> None:
        """There is something to write."""
        self._changed.set()

    def leave(self) -> None:
        """Write once more what there is, then end."""
        self._leaving.set()
        self._changed.set()

    async def run(self) -> None:
        """Write until told to leave."""
        retry_s = FIRST_RETRY_S
        self._changed.set()  # look whether Redis is there
        while True:
            await self._wait_for_changes()
            while await self._write_round():
                pass
            if self.is_connected:
                retry_s = FIRST_RETRY_S
            elif not self._leaving.is_set():
                await self._pause(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                self._changed.set()
            if self._leaving.is_set() and not (self.is_connected and self._changed.is_set()):
                return

    async def read_public(self) -> None:
        """Complete `public` by what was recorded; if names were put or deleted meanwhile, it is to be written."""
        recorded = await reader.public_prefixes(self.client, self._author.kvcache_id)
        is_first, self.owed.is_public_unread = self.owed.is_public_unread, False
        if is_first and self.public.recall(recorded):  # else `run` and the start of the service have both read it
            self.owed.public = record.packed_prefixes(dict(self.public))

    async def close(self) -> None:
        """Drop the connections."""
        await redis_client.close(self.client)

    async def _wait_for_changes(self) -> None:
        """Return some 20 ms after the first change, or at once when the service leaves."""
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._changed.wait()
        except TimeoutError:
            self._note_all()
        await self._pause(GATHER_S)
        self._changed.clear()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    async def _write_round(self) -> bool:
        """Write one piece of what there is to say; whether there is more to say at once."""
        try:
            if not self.is_connected:
                await answered(self.client.ping())
            if self._was_lost:
                self._note_all()
            await self._write_owed()
            has_more = await self._write_journals()
            if not self.is_connected:
                self._reached()
        except FAILURES as error:
            await self._lost(error)
            has_more = False
        self.round_done.set()
        self.round_done = asyncio.Event()
        return has_more

    async def _write_owed(self) -> None:
        """Pools that are over, public prefixes, and the sweep."""
        owed, kvcache_id = self.owed, self._author.kvcache_id
        if owed.is_sweep_due:
            recorded = await reader.pool_ids(self.client, kvcache_id)
            owed.closed.update(pool_id for pool_id in recorded if pool_id not in self.journals)
            owed.is_sweep_due = False
        for pool_id in list(owed.closed):
            await answered(self.client.unlink(*record.pool_keys(kvcache_id, pool_id).all))
            await answered(self.client.srem(record.directory_key(kvcache_id), pool_id))
            self._listed.discard(pool_id)
            owed.closed.discard(pool_id)  # one that was opened meanwhile is written anew, after this
        await self._look_at_public()
        if owed.public is not None:
            public = owed.public
            blob = record.blob((name.encode(), packed) for name, packed in public.items())
            await answered(self.client.eval(scripts.REPLACE, 1, self._public_key, blob))
            if owed.public is public:
                owed.public = None

    async def _look_at_public(self) -> None:
        """Nothing that was recorded is written over unread, and what Redis has lost is written again."""
        owed = self.owed
        if owed.is_public_unread:
            await self.read_public()
        elif owed.is_public_in_doubt and not await answered(self.client.exists(self._public_key)) and self.public:
            owed.public = record.packed_prefixes(dict(self.public))
        owed.is_public_in_doubt = False

    async def _write_journals(self) -> bool:
        """One pipeline: the next piece of each pool, as many as a step does not notice, in turn.

        Returns whether there is more to say at once; changes that have just come are gathered first. A pool may close
        or be opened again while this waits: then what was answered is of no meaning any more.
        """
        await self._list()
        taken = self._take_pieces()
        if not taken:
            return False
        try:
            answers = await self._execute(taken.values())
        except FAILURES:
            self._start_over(taken)
            raise
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        for (journal, write), answer in zip(taken.items(), answers, strict=True):
            if isinstance(answer, Exception):
                self._start_over([journal])
                continue
            is_lost = not journal.done(answer, time.monotonic())
            if is_lost:
                _log.warning("metadata_record_lost", pool_id=journal.pool.key.pool_id)
                self.owed.is_public_in_doubt = True
            if is_lost or write.script == scripts.PUT_SNAPSHOT:
                self._listed.discard(journal.pool.key.pool_id)  # what is lost may be the directory, too
        if failed:
            raise failed[0]
        is_cut_short = len(taken) == MAX_WRITES or sum(journal.num_in_hand for journal in taken) >= PIECE_KEYS
        is_unlisted = not self.journals.keys() <= self._listed
        return is_cut_short or is_unlisted or any(journal.is_unfinished for journal in taken)

    def _take_pieces(self) -> dict[Journal, Write]:
        """The next piece of some journals that have something to say, about one piece's worth of keys in all."""
        journals = list(self.journals.values())
        first = self._num_rounds % len(journals) if journals else 0
        self._num_rounds += 1
        taken: dict[Journal, Write] = {}
        num_keys = 0
        for journal in journals[first:] + journals[:first]:
            write = journal.take()
            if write is not None:
                taken[journal] = write
                num_keys += journal.num_in_hand
            if num_keys >= PIECE_KEYS or len(taken) == MAX_WRITES:
                break
        return taken

    async def _list(self) -> None:
        """A pool is in the directory before its record is there, so that no record is without an owner."""
        pool_ids = self.journals.keys() - self._listed
        if pool_ids:
            await answered(self.client.sadd(record.directory_key(self._author.kvcache_id), *pool_ids))
            self._listed |= pool_ids

    async def _execute(self, writes: Iterable[Write]) -> list[Any]:
        async with self.client.pipeline(transaction=False) as pipe:
            for write in writes:
                pipe.eval(write.script, len(write.keys), *write.keys, *write.args)
            return await pipe.execute(raise_on_error=False)

    def _start_over(self, journals: Iterable[Journal]) -> None:
        for journal in journals:
            journal.start_over(time.monotonic())

    def _note_all(self) -> None:
        """Write every pool's record again, which tells whether Redis still has it; look at the public prefixes."""
        self.owed.is_public_in_doubt = True
        for journal in self.journals.values():
            journal.note((), time.monotonic())

    async def _lost(self, error: Exception) -> None:
        """Redis did not take a write, or does not answer. Another server may be the one to talk to from now on."""
        self.num_errors += 1
        if not self._was_lost:
            _log.warning("redis_lost", error=str(error), next_try_in_s=FIRST_RETRY_S, longest_retry_s=LONGEST_RETRY_S)
        self.is_connected, self._was_lost = False, True
        self._listed.clear()
        await self.close()
        self.client = redis_client.client(self._url)

    def _reached(self) -> None:
        """It has taken what there was to write: one that is full, or a replica, answers and takes nothing."""
        _log.info("redis_reached", num_pools=len(self.journals))
        self.is_connected, self._was_lost = True, False
