"""What may go wrong, with whom and for how long, and the random schedule that a seed gives. Does nothing itself."""

import enum
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.faults.proxy import Direction


class Kind(enum.Enum):
    """What may be done to a process or a link."""

    KILL = "kill"  # SIGKILL; it is started again
    TERM = "term"  # SIGTERM; it ends as it is meant to and is started again
    STOP = "stop"  # SIGSTOP, and SIGCONT after `duration_s`
    CUT = "cut"  # all connections are reset; new ones work
    HALF_OPEN = "half-open"  # for `duration_s` bytes no longer arrive, sockets stay open
    DELAY = "delay"  # for `duration_s` every byte comes late
    DUPLICATE = "duplicate"  # for `duration_s` messages come twice,
    REORDER = "reorder"  # change places,
    DROP = "drop"  # or do not come


PROCESS_KINDS = (Kind.KILL, Kind.TERM, Kind.STOP)
BYTE_KINDS = (Kind.CUT, Kind.HALF_OPEN, Kind.DELAY)  # on any link
MESSAGE_KINDS = (Kind.DUPLICATE, Kind.REORDER, Kind.DROP)  # on links that carry one of our streams

LONGEST_SECOND_S = 8.0  # of two: with every worker gone for 30 s a refusal would be right


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong. `seed` decides what the kind leaves open, such as which messages are dropped."""

    target: str  # a process ("worker-0") or a link ("gateway-scheduler") of the stack
    kind: Kind
    duration_s: float  # 0 for what happens at once
    directions: tuple[Direction, ...]  # of a link; empty for a process
    seed: int

    def __str__(self) -> str:
        ways = "" if not self.directions else " " + "+".join(direction.value for direction in self.directions)
        return self.what + ways + (f" {self.duration_s:g} s" if self.duration_s else "")

    @property
    def what(self) -> str:
        return f"{self.target} {self.kind.value}"

    @property
    def breaks_clients(self) -> bool:
        """Whether clients may see their connection break, and then send the request again."""
        return self.target in ("gateway", "client-gateway-http", "client-gateway-grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Names of all that can be harmed."""

    processes: Sequence[str]
    links: Sequence[str]  # all of them
    message_links: Sequence[str]  # those whose messages can be harmed one by one

    @property
    def pairs(self) -> list[tuple[str, Kind]]:
        """Every kind for every target that it can happen to."""
        return [
            *((process, kind) for process in self.processes for kind in PROCESS_KINDS),
            *((link, kind) for link in self.links for kind in BYTE_KINDS),
            *((link, kind) for link in self.message_links for kind in MESSAGE_KINDS),
        ]


def draw(targets: Targets, *, seed: int, number: int, longest_s: float = math.inf) -> Fault:
    """Fault `number` of the endless schedule that belongs to a seed; each can be had without those before it."""
    random_ = random.Random(f"{seed}/{number}")
    target, kind = random_.choice(targets.pairs)
    return _limited(_drawn(target, kind, targets, random_), longest_s)


def draw_other(targets: Targets, first: Fault, *, seed: int, number: int) -> Fault:
    """What happens to another target shortly after fault `number`."""
    random_ = random.Random(f"{seed}/{number}/other")
    others = [(target, kind) for target, kind in targets.pairs if target != first.target]
    target, kind = random_.choice(others)
    return _limited(_drawn(target, kind, targets, random_), LONGEST_SECOND_S)


def each_once(targets: Targets, *, seed: int, longest_s: float) -> list[Fault]:
    """Every pair of target and kind, in an order and with details that the seed decides; none lasts very long."""
    random_ = random.Random(f"{seed}/each")
    pairs = targets.pairs
    random_.shuffle(pairs)
    return [_limited(_drawn(target, kind, targets, random_), longest_s) for target, kind in pairs]


def _limited(fault: Fault, longest_s: float) -> Fault:
    return replace(fault, duration_s=min(fault.duration_s, longest_s))


def _drawn(target: str, kind: Kind, targets: Targets, random_: random.Random) -> Fault:
    is_process = target in targets.processes
    every_way = (tuple(Direction), (Direction.UP,), (Direction.DOWN,))
    return Fault(
        target=target,
        kind=kind,
        duration_s=_duration_s(kind, random_),
        directions=() if is_process or kind in (Kind.CUT, Kind.DELAY) else random_.choice(every_way),
        seed=random_.randrange(1 << 31),
    )


def _duration_s(kind: Kind, random_: random.Random) -> float:
    match kind:
        case Kind.KILL | Kind.TERM | Kind.CUT:
            return 0.0
        case Kind.STOP:
            return random_.choices((1.0, 5.0, 30.0), (5, 4, 1))[0]
        case Kind.HALF_OPEN:
            return random_.choice((1.0, 4.0, 8.0, 20.0))
        case Kind.DELAY | Kind.DUPLICATE | Kind.REORDER | Kind.DROP:
            return random_.choice((2.0, 5.0))
