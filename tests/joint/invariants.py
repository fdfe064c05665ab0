"""What holds in a world after every call, whatever has happened."""

from array import array
from collections import Counter
from collections.abc import Sequence

from kvcache_service.core.block_hash import HashChain, root_hash
from scheduler_service.core.request import Request, Status
from tests.fakes.paged_worker import continuation, extended
from tests.joint.site import BLOCK_SIZE, FINGERPRINT, MAX_MODEL_LEN, Site
from tests.joint.world import World
from tests.scheduler_service.core.rig import extras_of

Prefix = tuple[int, ...]


class Names:
    """What every block hash that can ever come up means: answers are known beforehand."""

    def __init__(self) -> None:
        self._prefixes: dict[bytes, Prefix] = {}
        self._parents: dict[bytes, bytes | None] = {}
        self._slots: dict[bytes, list[int]] = {}

    def add(self, request: Request) -> None:
        """The request's sequence, to the end; a hash names one token sequence only."""
        prompt = request.token_ids[: request.num_prompt_tokens]
        token_ids = prompt + continuation(prompt, request.rules.max_tokens)
        parent = None
        keys = HashChain(root_hash(FINGERPRINT), BLOCK_SIZE, extras_of(request.identity)).keys(array("I", token_ids))
        for number, key in enumerate(keys, 1):
            prefix = tuple(token_ids[: number * BLOCK_SIZE])
            assert self._prefixes.setdefault(key, prefix) == prefix
            assert self._parents.setdefault(key, parent) == parent
            self._slots.setdefault(key, _contents(prefix)[-BLOCK_SIZE:])
            parent = key

    def slots(self, key: bytes) -> list[int]:
        """What a block of this name holds."""
        return self._slots[key]

    def parent(self, key: bytes) -> bytes | None:
        return self._parents[key]


def _contents(prefix: Sequence[int]) -> list[int]:
    contents, last = [], 0
    for token_id in prefix:
        last = extended(last, token_id)
        contents.append(last)
    return contents


def check_blocks(world: World, site: Site) -> None:
    """free + held + fenced = N-1, cached a part of free; a block has as many users as tables and pins hold it."""
    manager, figures = world.manager(site), world.manager(site).figures
    pool, free = manager.pool, list(manager.pool.free_queue)
    held = [block_id for request in manager.running.values() for block_id in request.block_table]
    for pin in map(manager.pins.get, manager.pins):
        held += pin.block_ids if pin is not None else ()
    assert len(set(free)) == len(free) == figures.num_free
    assert len({*held}) == figures.num_held
    assert not set(free) & set(held)
    assert figures.num_free + figures.num_held + figures.num_fenced == world.settings.num_blocks - 1
    users = Counter(held)
    assert [pool.ref_cnt(block_id) for block_id in range(pool.num_blocks)] == [users[b] for b in range(pool.num_blocks)]
    assert pool.num_cached == sum(pool.key(block_id) is not None for block_id in free)


def check_names(world: World, site: Site, names: Names) -> None:
    """Who is found under a hash holds what it says, once it is committed; the cached set is closed under prefixes."""
    pool = world.manager(site).pool
    for key in pool.cache:
        parent = names.parent(key)
        assert parent is None or parent in pool.cache, "a block is cached and the one before it is not"
        for block_id in pool.cache.copies(key):
            assert pool.key(block_id) == key
            if pool.is_committed(block_id):
                assert site.worker.block(block_id) == names.slots(key), f"block {block_id} is named for other content"


def check_tables(world: World, site: Site) -> None:
    """Both sides hold the same tables, long enough for what was planned."""
    manager = world.manager(site)
    tables = {handle: request.block_table for handle, request in manager.running.items()}
    for request in site.core.running:
        assert tables.pop(request.handle) == request.block_ids
        assert len(request.block_ids) * BLOCK_SIZE >= request.num_computed_tokens >= request.num_acked_tokens >= 0
    waiting = {request.handle for request in site.core.waiting}
    assert not waiting & tables.keys() or site.core._roster.pending, "a waiting request holds blocks"


def check_requests(world: World) -> None:
    """Everybody is in one place, ends at most once, and was sent exactly the tokens that it has."""
    here = [request for site in world.sites for request in (*site.core.running, *site.core.waiting)]
    assert sorted(r.request_id for r in here) == sorted(r.request_id for r in world.open_requests())
    for request_id, request in world.requests.items():
        assert world.num_ends[request_id] == request.is_finished, f"{request_id} is {request.status}"
        assert world.emitted[request_id] == request.output_token_ids
        assert request.hold >= 0


def check_answer(request: Request) -> None:
    """What it has is what an undisturbed run answers; all of it, if nothing but its own rules ended it."""
    prompt, answer = request.token_ids[: request.num_prompt_tokens], request.output_token_ids
    whole = undisturbed(request, prompt)
    assert answer == whole[: len(answer)]
    if request.status is Status.STOPPED or (request.status is Status.LENGTH and not request.finish_detail):
        assert len(answer) == len(whole)


def undisturbed(request: Request, prompt: Sequence[int]) -> list[int]:
    rules = request.rules
    answer = continuation(prompt, min(rules.max_tokens, MAX_MODEL_LEN - len(prompt)))
    for number, token_id in enumerate(answer, 1):
        if token_id in rules.stop_token_ids and number >= rules.min_tokens:
            return answer[:number]
    return answer
