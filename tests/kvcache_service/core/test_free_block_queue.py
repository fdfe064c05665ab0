"""The order in which free blocks are given out."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from kvcache_service.core.free_block_queue import FreeBlockQueue


def test_starts_with_every_block_but_the_null_block_ascending():
    assert list(FreeBlockQueue(5)) == [1, 2, 3, 4]


def test_a_block_leaves_the_middle_without_disturbing_the_others():
    queue = FreeBlockQueue(6)
    queue.remove(3)
    assert list(queue) == [1, 2, 4, 5]
    assert len(queue) == 4


def test_a_prepended_batch_keeps_its_order_and_goes_before_everything():
    queue = FreeBlockQueue(6)
    for block_id in (2, 4, 5):
        queue.remove(block_id)
    queue.prepend([5, 2, 4])
    assert list(queue) == [5, 2, 4, 1, 3]


def test_can_be_emptied_and_filled_again():
    queue = FreeBlockQueue(3)
    assert queue.popleft(2) == [1, 2]
    assert list(queue) == []
    queue.append(2)
    queue.append(1)
    assert list(queue) == [2, 1]


@given(st.lists(st.tuples(st.sampled_from(["pop", "append", "prepend", "remove"]), st.integers(0, 7)), max_size=60))
def test_behaves_like_a_deque(operations: list[tuple[str, int]]):
    queue, model, taken = FreeBlockQueue(9), deque(range(1, 9)), list[int]()
    for operation, choice in operations:
        if operation == "pop":
            popped = [model.popleft() for _ in range(min(choice, len(model)))]
            assert queue.popleft(len(popped)) == popped
            taken += popped
        elif operation == "remove" and model:
            block_id = model[choice % len(model)]
            model.remove(block_id)
            queue.remove(block_id)
            taken.append(block_id)
        elif operation == "append" and taken:
            model.append(taken[-1])
            queue.append(taken.pop())
        elif operation == "prepend":
            batch, taken = taken[:choice], taken[choice:]
            model.extendleft(reversed(batch))
            queue.prepend(batch)
        assert list(queue) == list(model)
        assert len(queue) == len(model)
