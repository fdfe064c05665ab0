"""Prompts that an operator declared to be the same for all tenants: their full blocks hash outside the namespaces."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvcache_service.core.errors import BadPrefix

MAX_NAME_CHARS = 128
MAX_PREFIXES = 1024
MAX_PREFIX_TOKENS = 1 << 20


class PublicPrefixes:
    """By name. A prompt begins with a public prefix as far as its full blocks are those of the prefix."""

    def __init__(self, prefixes: Mapping[str, Iterable[int]] | None = None) -> None:
        self._prefixes: dict[str, array[int]] = {}
        self._by_first: dict[int, list[array[int]]] = {}  # first token id -> the prefixes that begin with it
        self._decided: set[str] | None = set()  # names put or deleted before `recall`; None after it
        for name, token_ids in (prefixes or {}).items():
            self.put(name, token_ids)

    def __len__(self) -> int:
        return len(self._prefixes)

    def __iter__(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Names and token ids, in the order of the names."""
        return iter(sorted(self._prefixes.items()))

    def put(self, name: str, token_ids: Iterable[int]) -> bool:
        """Declare a prefix; false if that is what the name says already. Raises BadPrefix, with nothing changed."""
        tokens = array("I", token_ids)
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise BadPrefix(
                f"the name of a public prefix has {len(name)} characters; it has 1 to {MAX_NAME_CHARS}",
                field="prefix.name",
            )
        if not 1 <= len(tokens) <= MAX_PREFIX_TOKENS:
            raise BadPrefix(
                f"public prefix {name!r} has {len(tokens)} tokens; it has 1 to {MAX_PREFIX_TOKENS}",
                field="prefix.token_ids",
            )
        if name not in self._prefixes and len(self._prefixes) == MAX_PREFIXES:
            raise BadPrefix(
                f"there are {MAX_PREFIXES} public prefixes already; delete one before {name!r}", field="prefix.name"
            )
        self._decide(name)
        if self._prefixes.get(name) == tokens:
            return False
        self._prefixes[name] = tokens
        self._index()
        return True

    def delete(self, name: str) -> bool:
        """Withdraw a prefix; false if there is none of this name."""
        self._decide(name)
        if self._prefixes.pop(name, None) is None:
            return False
        self._index()
        return True

    def recall(self, recorded: Mapping[str, Iterable[int]]) -> bool:
        """Take back, once, what was public before this object was; whether the outcome is not what was recorded.

        Names that were put or deleted meanwhile stay as they are, and so does the bound: what has no place is left out.
        """
        decided, self._decided = self._decided, None
        assert decided is not None, "what was recorded has been recalled already"
        known = {name: array("I", token_ids) for name, token_ids in recorded.items()}
        for name, tokens in known.items():
            if name not in decided and len(self._prefixes) < MAX_PREFIXES:
                self._prefixes[name] = tokens
        self._index()
        return self._prefixes != known

    def num_public_blocks(self, token_ids: "array[int]", block_size: int) -> int:
        """How many leading full blocks of a prompt are those of a public prefix."""
        candidates = self._by_first.get(token_ids[0], ()) if token_ids else ()
        return max((_num_common_blocks(token_ids, prefix, block_size) for prefix in candidates), default=0)

    def _decide(self, name: str) -> None:
        if self._decided is not None:
            self._decided.add(name)

    def _index(self) -> None:
        self._by_first = {}
        for prefix in self._prefixes.values():
            self._by_first.setdefault(prefix[0], []).append(prefix)


def _num_common_blocks(token_ids: "array[int]", prefix: "array[int]", block_size: int) -> int:
    """Binary search: if n leading blocks agree, so do fewer."""
    low, high = 0, min(len(token_ids), len(prefix)) // block_size
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * block_size, middle * block_size
        if token_ids[start:end] == prefix[start:end]:
            low = middle
        else:
            high = middle - 1
    return low
