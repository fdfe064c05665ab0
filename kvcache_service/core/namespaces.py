"""Numbers for the namespaces that blocks are named in, so that a column of small integers says whose a block is."""

from collections.abc import Iterator

OUTSIDE = 0  # the number of "in no namespace"


class Namespaces:
    """A namespace has a number as long as a block is named in it; then the number is used again."""

    __slots__ = ("_names", "_numbers", "_unused", "num_cached", "num_named")

    def __init__(self) -> None:
        self.num_named = [0]  # blocks, by number; those outside are not counted
        self.num_cached = [0]  # those of them that are free
        self._names: list[bytes | None] = [None]
        self._numbers: dict[bytes, int] = {}
        self._unused: list[int] = []

    def __iter__(self) -> Iterator[bytes]:
        """The namespaces that blocks are named in."""
        return iter(self._numbers)

    def name(self, number: int) -> bytes | None:
        """The namespace with this number; None is outside of all."""
        return self._names[number]

    def find(self, namespace: bytes) -> int | None:
        """The number of a namespace; None if no block is named in it."""
        return self._numbers.get(namespace)

    def add(self, namespace: bytes, num_blocks: int) -> int:
        """More blocks are named in this namespace; its number."""
        number = self._numbers.get(namespace)
        if number is None:
            number = self._number(namespace)
        self.num_named[number] += num_blocks
        return number

    def drop(self, number: int) -> None:
        """One block less is named in this namespace."""
        self.num_named[number] -= 1
        if self.num_named[number] == 0:
            name = self._names[number]
            assert name is not None, f"namespace {number} has no name"
            del self._numbers[name]
            self._names[number] = None
            self._unused.append(number)

    def _number(self, namespace: bytes) -> int:
        if self._unused:
            number = self._unused.pop()
            self._names[number] = namespace
        else:
            number = len(self._names)
            self._names.append(namespace)
            self.num_named.append(0)
            self.num_cached.append(0)
        self._numbers[namespace] = number
        return number
