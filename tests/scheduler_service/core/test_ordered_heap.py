"""The heap behind every queue: sorted reading, removal from anywhere, and what each costs."""

import math
import random

import hypothesis.strategies as st
from hypothesis import given

from scheduler_service.core.ordered_heap import OrderedHeap


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.booleans()), max_size=80))
def test_it_reads_as_a_sorted_list_with_equal_keys_in_the_order_of_entry(
    ops: list[tuple[int, int, bool]],
) -> None:
    heap: OrderedHeap[int] = OrderedHeap()
    entries: dict[int, tuple[int, int]] = {}  # item -> key, when it came
    for time, (item, key, is_push) in enumerate(ops):
        if is_push:
            heap.push(item, (key,))
            entries[item] = (key, time)
        elif item in entries:
            heap.remove(item)
            del entries[item]
        expected = sorted(entries, key=entries.__getitem__)
        assert list(heap) == expected
        assert heap.first() == (expected[0] if expected else None)
        assert (len(heap), set(entries)) == (len(entries), {item for item in range(21) if item in heap})


def test_reading_a_part_changes_nothing() -> None:
    heap: OrderedHeap[int] = OrderedHeap()
    for item in (3, 1, 2):
        heap.push(item, (item,))
    next(iter(heap))
    assert list(heap) == [1, 2, 3]


class Counted(float):
    """A key that counts how often it is compared."""

    num_comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.num_comparisons += 1
        return float(self) == other

    def __lt__(self, other: float) -> bool:
        Counted.num_comparisons += 1
        return float(self) < float(other)

    __hash__ = float.__hash__


def test_with_ten_thousand_items_every_operation_is_logarithmic() -> None:
    rng, size = random.Random(1), 10_000
    heap: OrderedHeap[int] = OrderedHeap()
    items = list(range(size))
    for item in items:
        heap.push(item, (Counted(rng.random()),))
    Counted.num_comparisons = 0
    num_ops = 0
    for _ in range(size):  # so often that all entries are dead once, and the heap is made anew
        gone = items[rng.randrange(size)]
        heap.remove(gone)
        heap.push(gone, (Counted(rng.random()),))
        heap.first()
        num_ops += 3
    assert Counted.num_comparisons / num_ops < 4 * math.log2(size)
