"""What a pool is supposed to know: requests as their scheduler sees them, and a worker that remembers every write.

Knows nothing of how the pool does it. Blocks hold two tokens, and there are two different tokens, two tenants and one
salt, so that prefixes are shared, and kept apart, all the time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvcache_service.core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlocksStored,
    CopyDropped,
    Event,
    PinEnded,
    PinSet,
)
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.pins import PinName

T = TypeVar("T")

B = 2
NUM_OUTPUTS = 8
MAX_PROMPT = 9
NAMESPACES = (b"n" * 16, b"m" * 16)
EXTRAS = (
    Extras(),
    Extras(namespace=NAMESPACES[0]),
    Extras(namespace=NAMESPACES[1]),
    Extras(namespace=NAMESPACES[0], namespace_block=1),  # its first block is public
    Extras(namespace=NAMESPACES[0], salt="s"),
    Extras(salt="s"),
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A sequence up to some token, and what keeps it apart from others."""

    tokens: tuple[int, ...]
    namespace: bytes | None
    salt: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a slot holds, and how often its namespace had been erased when it was written."""

    prefix: Prefix
    num_erasures: int


class Choices:
    """Decisions taken from a string of bytes, so that a failing run shrinks to few and small ones."""

    def __init__(self, choices: bytes) -> None:
        self._left = iter(choices)

    def below(self, end: int) -> int:
        """From 0 to end - 1; 0 when there are no bytes left."""
        return next(self._left, 0) % end

    def one_in(self, number: int) -> bool:
        """True as rarely as the number says; never when there are no bytes left."""
        return self.below(number) == number - 1

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def some_of(self, values: Iterable[T], *, one_in: int = 2) -> list[T]:
        return [value for value in values if self.one_in(one_in)]

    def shuffled(self, values: Iterable[T]) -> list[T]:
        left = list(values)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]


@dataclass(slots=True)
class ModelRequest:
    """A request; `tokens` are all that it will ever have."""

    handle: int
    tokens: list[int]
    extras: Extras
    num_revealed: int  # ids that are known
    num_committed: int = 0  # ids that the pool was told
    epoch: int = 0
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_acked: int = 0
    num_erasures: int = 0  # of its namespace, when it was admitted

    def content(self, position: int) -> Content:
        """What its step writes at a position."""
        return Content(prefix_of(self.extras, self.tokens[: position + 1]), self.num_erasures_at(position))

    def num_erasures_at(self, position: int) -> int:
        return self.num_erasures if position // B >= self.extras.namespace_block else 0

    def drop(self) -> None:
        self.epoch += 1
        self.table = []
        self.num_computed = self.num_acked = 0


def prefix_of(extras: Extras, tokens: Sequence[int]) -> Prefix:
    """A sequence up to a token; the blocks of a public prefix are in no namespace."""
    is_own = (len(tokens) - 1) // B >= extras.namespace_block
    return Prefix(tuple(tokens), extras.namespace if is_own else None, extras.salt)


@dataclass(frozen=True, slots=True)
class Write:
    """One token's K/V going into one slot."""

    block_id: int
    slot: int
    content: Content


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a plan takes a request of some epoch."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan that was sent: how far it takes each request, and what it writes where."""

    step: int
    reaches: dict[int, Reach]
    writes: list[Write]


class Worker:
    """Runs plans in order. `content` is what a later plan finds in a slot, `written` what acknowledged plans left."""

    def __init__(self, num_blocks: int) -> None:
        self.flights: list[Flight] = []
        self.content: dict[int, list[Content | None]] = {block_id: [None] * B for block_id in range(num_blocks)}
        self.written: dict[int, list[Content | None]] = {block_id: [None] * B for block_id in range(num_blocks)}

    def send(self, flight: Flight) -> None:
        for write in flight.writes:
            self.content[write.block_id][write.slot] = write.content
        self.flights.append(flight)

    def run(self, num_flights: int) -> list[Flight]:
        done, self.flights = self.flights[:num_flights], self.flights[num_flights:]
        for write in (write for flight in done for write in flight.writes):
            self.written[write.block_id][write.slot] = write.content
        return done

    def fail(self, step: int) -> set[int]:
        """This plan and those behind it are void; the requests in them."""
        lost = [flight for flight in self.flights if flight.step >= step]
        self.flights = [flight for flight in self.flights if flight.step < step]
        for write in (write for flight in lost for write in flight.writes):
            if self.content[write.block_id][write.slot] == write.content:
                self.content[write.block_id][write.slot] = None
        return {handle for flight in lost for handle in flight.reaches}


class Index:
    """What somebody elsewhere knows who hears of events only."""

    def __init__(self) -> None:
        self.block_ids: dict[bytes, set[int]] = {}
        self.pins: dict[PinName, PinSet] = {}

    def hear(self, event: Event) -> None:
        match event:
            case BlocksStored():
                for block_hash, block_id in zip(event.block_hashes, event.block_ids, strict=True):
                    self.block_ids.setdefault(block_hash, set()).add(block_id)
            case CopyDropped():
                self.block_ids[event.block_hash].remove(event.block_id)
            case BlockRemoved():
                assert self.block_ids.pop(event.block_hash) == {event.block_id}
            case AllBlocksCleared():
                self.block_ids.clear()
            case PinSet():
                self.pins[PinName(event.namespace, event.pin_id)] = event
            case PinEnded():
                del self.pins[PinName(event.namespace, event.pin_id)]
