"""All HTTP connections of one server: how many there are, which wait for their clients, how much they have sent.

Decides who gives way when there is too much of anything; how, is the connection's business.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What clients may cost this server."""

    max_connections: int
    max_body_bytes: int  # of all requests together that are received or being answered
    slow_request_s: float  # for a head; for a body, plus what its bytes have earned
    stalled_s: float  # without the client taking a byte that was sent; 0 = for ever
    idle_s: float = 75.0  # without a request; longer than clients keep idle connections themselves
    min_bytes_per_s: float = 16_384  # of a body, once slow_request_s is used up
    linger_s: float = 2.0  # for a client that is still sending when its answer is out: to read it, or to finish


class Cut(Enum):
    """Why a connection was closed by this side: the code that its client is told."""

    IDLE = "idle"
    SLOW_HEAD = "slow_head"
    SLOW_BODY = "slow_body"
    STALLED = "stalled"
    LARGE_HEAD = "head_too_large"
    PIPELINED = "too_many_pipelined"
    NOT_HTTP = "not_http"
    TOO_MANY = "too_many_connections"
    BODIES = "too_many_bodies"

    @property
    def status_line(self) -> str:
        return _ANSWERS[self].status_line

    @property
    def message(self) -> str:
        return _ANSWERS[self].message

    @property
    def is_passing(self) -> bool:
        """The same request may succeed a little later."""
        return self in (Cut.TOO_MANY, Cut.BODIES)

    @property
    def error_type(self) -> str:
        return "server_error" if self.is_passing else "invalid_request_error"


@dataclass(frozen=True, slots=True)
class _Answer:
    status_line: str
    message: str


_SLOW = "408 Request Timeout"
_ANSWERS = {
    Cut.IDLE: _Answer(_SLOW, "nothing was asked"),
    Cut.SLOW_HEAD: _Answer(_SLOW, "the head of the request took too long to arrive"),
    Cut.SLOW_BODY: _Answer(_SLOW, "the body of the request took too long to arrive"),
    Cut.STALLED: _Answer(_SLOW, "the answer was not read"),
    Cut.LARGE_HEAD: _Answer("431 Request Header Fields Too Large", "the head of the request is too large"),
    Cut.PIPELINED: _Answer("429 Too Many Requests", "too many requests were sent ahead of their answers"),
    Cut.NOT_HTTP: _Answer("400 Bad Request", "this is not an HTTP request"),
    Cut.TOO_MANY: _Answer("503 Service Unavailable", "this server has all the connections it can have"),
    Cut.BODIES: _Answer("503 Service Unavailable", "this server is receiving all the bytes it can hold"),
}


class Connection(Protocol):
    """What is counted: connections, and in tests less than that."""

    num_body_bytes: int

    def cut(self, reason: Cut) -> None: ...


class Connections:
    """Counts; the one that has waited for its client the longest gives way to a new one."""

    def __init__(self, limits: ConnectionLimits, registry: CollectorRegistry | None = None) -> None:
        self.limits = limits
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # for their clients, the longest first
        self._num_body_bytes = 0
        self._cuts = Counter(
            "octavo_http_connections_cut", "Connections that this side closed.", ("reason",), registry=registry
        )
        gauge = Gauge("octavo_http_connections", "Open HTTP connections.", registry=registry)
        gauge.set_function(lambda: len(self._open))
        for reason in Cut:
            self._cuts.labels(reason=reason.value)

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_body_bytes(self) -> int:
        return self._num_body_bytes

    def opened(self, connection: Connection) -> None:
        """A new one; if it is one too many, the one that waits the longest goes, which may be itself."""
        self._open.add(connection)
        if len(self._open) > self.limits.max_connections:
            self._drop(next(iter(self._waiting)), Cut.TOO_MANY)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self.let_go(connection.num_body_bytes)
        connection.num_body_bytes = 0

    def moved(self, connection: Connection, *, waits_for_client: bool) -> None:
        """It begins to wait, or to wait for something else, or to work."""
        self._waiting.pop(connection, None)
        if waits_for_client:
            self._waiting[connection] = None

    def received(self, num_bytes: int) -> None:
        """More of a body; if it is too much in all, the largest that is still coming goes."""
        self._num_body_bytes += num_bytes
        if self._num_body_bytes > self.limits.max_body_bytes:
            largest = max(self._waiting, key=lambda connection: connection.num_body_bytes, default=None)
            if largest is not None and largest.num_body_bytes:
                self._drop(largest, Cut.BODIES)

    def let_go(self, num_bytes: int) -> None:
        """A body was answered."""
        self._num_body_bytes -= num_bytes

    def count(self, reason: Cut) -> None:
        self._cuts.labels(reason=reason.value).inc()

    def _drop(self, connection: Connection, reason: Cut) -> None:
        """It counts no longer; its last bytes may still be on their way."""
        connection.cut(reason)
        self._open.discard(connection)
        self._waiting.pop(connection, None)
