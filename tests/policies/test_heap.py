"""The heap that things leave from the middle, against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policies.heap import Heap


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("arrrt"), st.integers(0, 9), st.integers(0, 20))))
def test_the_top_is_the_smallest_of_those_still_there(steps: list[tuple[str, int, int]]):
    heap: Heap[int] = Heap()
    model: dict[str, tuple[int, int, int]] = {}

    for serial, (what, key, number) in enumerate(steps):
        name = str(number)
        if what == "a" and name not in model:
            heap.add(key, name, number)
            model[name] = (key, serial, number)
        elif what == "r":
            gone = model.pop(name, None)
            assert heap.remove(name) == (None if gone is None else gone[2])
        best = min(model.values(), default=None)
        assert heap.top() == (None if best is None else (best[0], best[2]))
        assert (len(heap), set(heap)) == (len(model), {item for _, _, item in model.values()})


def test_equal_keys_keep_the_order_in_which_they_came():
    heap: Heap[str] = Heap()
    for name in "cab":
        heap.add(1, name, name)

    assert [heap.remove(top[1]) for _ in range(3) if (top := heap.top())] == ["c", "a", "b"]


def test_an_item_comes_back_at_its_new_key_only():
    heap: Heap[str] = Heap()
    heap.add(1, "x", "old")
    heap.remove("x")
    heap.add(5, "x", "new")
    heap.add(3, "y", "other")

    assert heap.top() == (3, "other")


def test_an_id_is_taken_once():
    heap: Heap[None] = Heap()
    heap.add(1, "x", None)

    with pytest.raises(ValueError, match="'x' is already waiting"):
        heap.add(2, "x", None)
    assert (len(heap), "x" in heap, "y" in heap) == (1, True, False)


def test_earlier_entries_of_one_that_came_back_are_not_kept():
    heap: Heap[int] = Heap()
    heap.add(0, "head", 0)
    for n in range(60):
        heap.add(n, "often", n)
        heap.remove("often")
    heap.add(99, "often", 99)

    for n in range(10):
        heap.add(n, str(n), n)
        heap.remove(str(n))

    assert heap.held < 20


def test_what_left_behind_a_lasting_head_is_not_kept():
    heap: Heap[int] = Heap()
    heap.add(0, "head", 0)

    for n in range(10_000):
        heap.add(n, str(n), n)
        heap.remove(str(n))

    assert heap.held < 100
