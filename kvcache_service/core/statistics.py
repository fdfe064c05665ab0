"""How much of what was asked for the prefix cache had, counted once per admission, never per retry."""

from dataclasses import dataclass, field
from enum import Enum

MAX_COUNTED_NAMESPACES = 16384  # those that were counted longest ago are forgotten first


class MissReason(Enum):
    """Why a lookup found no more: the one list, for spans, figures and Match."""

    PARTIAL_BLOCK = "partial_block"  # every full block was found: nothing more could have been
    COLD = "cold"  # the first block that is missing was not here lately
    EVICTED = "evicted"  # it was, and had to go
    OTHER_NAMESPACE = "other_namespace"  # it is here for others
    BYPASSED = "bypassed"  # the request reads nothing, or caching is off


@dataclass(slots=True)
class TokenCounts:
    """Tokens looked up and found. Admissions after a preemption count apart, for they find their own blocks."""

    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_preempted_query_tokens: int = 0
    num_preempted_hit_tokens: int = 0

    def count(self, num_query_tokens: int, num_hit_tokens: int, *, was_preempted: bool) -> None:
        """One admission."""
        if was_preempted:
            self.num_preempted_query_tokens += num_query_tokens
            self.num_preempted_hit_tokens += num_hit_tokens
        else:
            self.num_query_tokens += num_query_tokens
            self.num_hit_tokens += num_hit_tokens


@dataclass(slots=True)
class PrefixStatistics(TokenCounts):
    """What the admissions of one pool found, of all together and of each namespace."""

    by_namespace: dict[bytes | None, TokenCounts] = field(default_factory=dict)  # the one counted last is the last
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))
    num_near_misses: int = 0

    def count_admission(
        self, num_query_tokens: int, num_hit_tokens: int, *, was_preempted: bool, namespace: bytes | None
    ) -> None:
        """The tokens of one admission that reads the cache."""
        self.count(num_query_tokens, num_hit_tokens, was_preempted=was_preempted)
        counts = self.by_namespace.pop(namespace, None) or TokenCounts()
        self.by_namespace[namespace] = counts
        counts.count(num_query_tokens, num_hit_tokens, was_preempted=was_preempted)
        if len(self.by_namespace) > MAX_COUNTED_NAMESPACES:
            del self.by_namespace[next(iter(self.by_namespace))]

    def count_miss(self, reason: MissReason, *, is_near: bool) -> None:
        """Why a first admission found no more, and whether it shared less than a block with what is cached there."""
        self.misses[reason] += 1
        self.num_near_misses += is_near
