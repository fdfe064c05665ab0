"""Messages about cached prefixes to core values and back: prompts, matches, pins, public prefixes. Decides nothing."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from kvcache_service import wire
from kvcache_service.core.cached_prefixes import PinnedPrefix, PoolMatch
from kvcache_service.core.identities import Identities
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.request import Identity
from kvcache_service.core.statistics import MissReason
from octavo.columns import Malformed, pack, unpack
from octavo.kvcache.v1 import kvcache_pb2 as pb

NANOS_PER_S = 1_000_000_000
MAX_PROMPT_TOKENS = 1 << 20  # hashing them takes some 70 ms, for which every step waits

MISS_REASONS = {
    MissReason.PARTIAL_BLOCK: pb.MISS_REASON_PARTIAL_BLOCK,
    MissReason.COLD: pb.MISS_REASON_COLD,
    MissReason.EVICTED: pb.MISS_REASON_EVICTED,
    MissReason.OTHER_NAMESPACE: pb.MISS_REASON_OTHER_NAMESPACE,
    MissReason.BYPASSED: pb.MISS_REASON_BYPASSED,
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens, and what they hash under."""

    token_ids: "array[int]"
    identity: Identity


def prompt(message: pb.MatchQuery | pb.PinRequest, identities: Identities, *, block_size: int) -> Prompt:
    """The prompt that a message is about."""
    token_ids = unpack("token_ids", message.token_ids)
    if len(token_ids) > MAX_PROMPT_TOKENS:
        raise Malformed(f"token_ids has {len(token_ids)} tokens; at most {MAX_PROMPT_TOKENS} are looked up at once")
    return Prompt(token_ids, wire.identity(message.identity, identities, token_ids=token_ids, block_size=block_size))


def match_result(matches: Iterable[PoolMatch]) -> pb.MatchResult:
    """What each pool holds of one prompt."""
    return pb.MatchResult(
        pools=[
            pb.PoolMatch(
                pool_id=match.pool_id,
                num_cached_tokens=match.num_cached_tokens,
                miss_reason=MISS_REASONS[match.miss_reason],
            )
            for match in matches
        ]
    )


def ttl_s(message: Duration) -> float:
    """How long a pin is to last; not yet whether that is too long, or no time at all."""
    if abs(message.nanos) >= NANOS_PER_S:
        raise Malformed(f"ttl has {message.nanos} nanos; a Duration has fewer than {NANOS_PER_S}")
    return message.seconds + message.nanos / NANOS_PER_S


def pinned(prefixes: Iterable[PinnedPrefix]) -> pb.PinResponse:
    """What each pool keeps."""
    return pb.PinResponse(
        pools=[pb.PinnedPrefix(pool_id=prefix.pool_id, num_tokens=prefix.num_tokens) for prefix in prefixes]
    )


def public_prefixes(public: PublicPrefixes) -> pb.ListPublicPrefixesResponse:
    """The public prefixes, in the order of their names."""
    return pb.ListPublicPrefixesResponse(
        prefixes=[pb.PublicPrefix(name=name, token_ids=pack(token_ids)) for name, token_ids in public]
    )
