"""Watching the prefix caches over the wire: events in order, going on from one, starting anew, slow watchers."""

import asyncio
from typing import Any

import pytest

from kvcache_service import watch
from kvcache_service.core.event_log import EventLog
from kvcache_service.core.events import BlockRemoved, BlocksStored
from kvcache_service.core.pools import Pools
from kvcache_service.watch import Watches
from octavo.columns import unpack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.kvcache_service.core.pools_rig import opened, run
from tests.kvcache_service.core.test_residency import follow
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import INCARNATION, Service, admit, failure_of, free, serving

PROMPT = family("A", 48)


class Watcher:
    """Keeps an index as the protocol says, and the last event that it has."""

    def __init__(self, service: Service, **fields: Any) -> None:
        self._call = service.stub.Watch(pb.WatchRequest(**fields))
        self._pending: list[pb.CacheEvent] = []
        self.index: set[tuple[str, bytes]] = set()
        self.last_num = 0

    async def next(self) -> pb.CacheEvent:
        while not self._pending:
            async with asyncio.timeout(10):
                response = await self._call.read()
            assert response.kvcache_incarnation == INCARNATION
            self._pending = list(response.events)
        event = self._pending.pop(0)
        self._take(event)
        return event

    async def kinds(self, number: int) -> list[str]:
        return [kind_of(await self.next()) for _ in range(number)]

    async def until(self, kind: str) -> pb.CacheEvent:
        while kind_of(event := await self.next()) != kind:
            pass
        return event

    async def up_to(self, event_num: int) -> None:
        while self.last_num < event_num:
            await self.next()

    def cancel(self) -> None:
        self._call.cancel()

    def _take(self, event: pb.CacheEvent) -> None:
        match kind_of(event):
            case "stored":
                hashes = event.stored.block_hashes
                self.index |= {(event.pool_id, hashes[at : at + 16]) for at in range(0, len(hashes), 16)}
            case "removed":
                self.index.discard((event.pool_id, event.removed.block_hash))
            case "cleared":
                self.index = {entry for entry in self.index if entry[0] != event.pool_id}
            case "restart":
                self.index.clear()
        self.last_num = event.event_num


def kind_of(event: pb.CacheEvent) -> str:
    kind: str | None = event.WhichOneof("event")
    assert kind is not None
    return kind


def findable(service: Service) -> set[tuple[str, bytes]]:
    return {
        (pool.key.pool_id, key[:16])
        for pool in service.pools
        for key in pool.manager.pool.cache
        if pool.manager.pool.is_key_committed(key)
    }


async def watching(service: Service, **fields: Any) -> Watcher:
    """A new watcher that has caught up."""
    watcher = Watcher(service, **fields)
    await watcher.until("caught_up")
    return watcher


async def test_a_new_watcher_starts_with_what_is_cached(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    await service.run(1, PROMPT[:32] + family("B", 16))
    watcher = Watcher(service)
    events = [await watcher.next() for _ in range(4)]
    assert [kind_of(event) for event in events] == ["restart", "stored", "stored", "caught_up"]
    assert events[0].restart.reason == "NEW"
    assert [event.event_num for event in events] == [0, 0, 0, 3]
    first, second = (event.stored for event in events[1:3])
    assert (len(first.block_hashes), first.parent_hash, first.token_ids) == (48, b"", b"")
    assert second.parent_hash == first.block_hashes[16:32]
    assert watcher.index == findable(service)


async def test_what_happens_then_comes_in_order_without_gaps(service: Service):
    watcher = await watching(service)
    await service.open(num_blocks=4)
    await service.run(0, PROMPT)
    await service.run(1, family("C", 48))
    await service.call("ResetPrefixCache", pool_id="w1")
    await service.call("ClosePool", pool_id="w1", incarnation=5)
    events = [await watcher.next() for _ in range(8)]
    assert [event.event_num for event in events] == list(range(1, 9))
    assert [kind_of(event) for event in events] == [
        "cleared", "stored", "removed", "removed", "removed", "stored", "cleared", "cleared",
    ]  # fmt: skip
    assert list(unpack("", events[1].stored.token_ids)) == PROMPT
    assert list(unpack("", events[1].stored.block_ids)) == [1, 2, 3]
    hashes = events[1].stored.block_hashes
    assert [event.removed.block_hash for event in events[2:5]] == [hashes[32:], hashes[16:32], hashes[:16]]
    assert watcher.index == set()


async def test_scenario_38_a_request_that_grows_is_told_with_the_parent_of_what_is_new(service: Service):
    await service.open()
    watcher = await watching(service)
    await service.plan(1, **admit(0, PROMPT[:32]))
    await service.plan(2, acked_step=1)
    more = pb.Commits(
        handles=b"\0\0\0\0", num_acked_tokens=(32).to_bytes(4, "little"), num_new_tokens=(16).to_bytes(4, "little"),
        new_token_ids=b"\x09\0\0\0" * 16,
    )  # fmt: skip
    await service.plan(3, commits=more, grows=pb.Grows(handles=b"\0\0\0\0", wants=b"\x10\0\0\0"))
    await service.plan(4, acked_step=3)
    first, second = await watcher.next(), await watcher.next()
    assert (len(first.stored.block_hashes), len(second.stored.block_hashes)) == (32, 16)
    assert second.stored.parent_hash == first.stored.block_hashes[16:]


async def test_reserved_blocks_are_not_told_before_they_are_committed(service: Service):
    await service.open()
    watcher = await watching(service)
    await service.plan(1, **admit(0, PROMPT))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await watcher.next()
    await service.plan(2, failed_step=1)
    await service.plan(3, frees=free(0))
    await service.run(1, family("B", 48))
    assert watcher.index == set()


async def test_a_watcher_goes_on_behind_the_last_event_that_it_has(service: Service):
    await service.open(num_blocks=4)
    first = await watching(service)
    await service.run(0, PROMPT)
    await first.next()
    first.cancel()
    await service.run(1, family("C", 48))
    second = Watcher(service, kvcache_incarnation=INCARNATION, after_event_num=first.last_num)
    events = [await second.next() for _ in range(4)]
    assert [event.event_num for event in events] == [first.last_num + number for number in (1, 2, 3, 4)]
    assert [kind_of(event) for event in events] == ["removed"] * 3 + ["stored"]


async def test_a_watcher_of_another_incarnation_starts_anew(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    watcher = Watcher(service, kvcache_incarnation=INCARNATION - 1, after_event_num=2)
    assert (await watcher.next()).restart.reason == "OTHER_INCARNATION"
    await watcher.until("caught_up")
    assert watcher.index == findable(service)


@pytest.mark.parametrize("after", [0, 1, 99])
async def test_a_watcher_whose_next_event_is_not_kept_starts_anew(after: int):
    async with serving(log=EventLog(max_events=2)) as service:
        await service.open()
        for handle in range(4):
            await service.run(handle, family("ABCD"[handle], 48))
        watcher = Watcher(service, kvcache_incarnation=INCARNATION, after_event_num=after)
        assert (await watcher.next()).restart.reason == "TOO_OLD"
        await watcher.until("caught_up")
        assert watcher.index == findable(service)


async def test_all_events_of_this_incarnation_are_a_complete_index_too(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    watcher = Watcher(service, kvcache_incarnation=INCARNATION, after_event_num=0)
    assert await watcher.kinds(2) == ["cleared", "stored"]
    assert watcher.index == findable(service)


async def test_a_watcher_of_one_pool_hears_of_that_pool_only(service: Service):
    await service.open("w1")
    await service.open("w2")
    await service.run(0, PROMPT, pool_id="w1")
    await service.run(0, family("B", 48), pool_id="w2")
    watcher = await watching(service, pool_id="w2")
    assert watcher.index == {entry for entry in findable(service) if entry[0] == "w2"}
    await service.run(1, family("C", 48), pool_id="w1")
    await service.run(1, family("D", 48), pool_id="w2")
    assert (await watcher.next()).pool_id == "w2"


async def test_an_event_number_that_cannot_be_is_refused(service: Service):
    assert (await failure_of(service.stub.Watch(pb.WatchRequest(after_event_num=-1)).read())).reason == "MALFORMED"


async def churn(service: Service, num_rounds: int, *, first: int = 0, num_tokens: int = 1024) -> None:
    """Requests whose blocks evict each other's."""
    for number in range(first, first + num_rounds):
        await service.run(number, [number, *range(num_tokens - 1)])


async def test_a_watcher_that_does_not_read_holds_up_no_step_and_starts_anew_when_it_does():
    log = EventLog(max_events=2000)
    async with serving(log=log) as service:
        await service.open(num_blocks=1026)
        slow = await watching(service)
        await churn(service, 200, num_tokens=16_384)  # more than gRPC holds for a reader that is away
        assert len(log) <= 2000
        restart = await slow.until("restart")
        assert restart.restart.reason == "TOO_SLOW"
        await slow.until("caught_up")
        await churn(service, 1, first=200)
        await slow.up_to(log.last_num)
        assert slow.index == findable(service)


async def test_what_changes_while_a_watcher_starts_anew_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "STATE_PIECE", 2)
    pools, index = Pools(), set[bytes]()
    pool = opened(pools, "w1", num_blocks=12)
    for handle, name in enumerate("ABC"):
        run(pool, handle, family(name, 48))
    pool.manager.take_events()
    watches = Watches(pools, incarnation=INCARNATION)
    handle = 3
    async for events in watches.follow("", incarnation=0, after=0):
        follow(index, [watched.event for watched in events if isinstance(watched.event, BlocksStored | BlockRemoved)])
        if handle < 8:  # between any two pieces, and for a while after the last
            run(pool, handle, family("DEFGH"[handle - 3], 32))
            watches.note("w1", pool.manager.take_events())
            handle += 1
        elif events[-1].event_num == watches.last_num:
            break
    assert index == {key[:16] for key in pool.manager.pool.cache}


async def test_an_erased_tenant_is_told_to_no_watcher_any_more_but_its_removal_to_all(service: Service):
    await service.open()
    before = await watching(service)
    await service.run(0, PROMPT, tenant="acme")
    await service.run(1, PROMPT, tenant="other")
    await before.up_to(service.log.last_num)
    known = before.last_num
    await service.call("EraseNamespace", tenant="acme")
    late = Watcher(service, kvcache_incarnation=INCARNATION, after_event_num=known - 1)
    assert (await late.next()).restart.reason == "TOO_OLD"
    await late.until("caught_up")
    assert await before.kinds(3) == ["removed"] * 3
    assert before.index == late.index == findable(service)


async def test_watchers_that_leave_are_forgotten(service: Service):
    await service.open()
    watchers = [await watching(service) for _ in range(5)]
    for watcher in watchers:
        watcher.cancel()
    await service.run(0, PROMPT)
    assert (await watching(service)).index == findable(service)
