"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import a_request

from forebay.policies.ordering_fcfs import Fcfs

if TYPE_CHECKING:
    from forebay.policies.contracts import Request


def request(sequence: int, model: str = "big") -> Request:
    return a_request(sequence, model=model)


def anything(_: Request) -> bool:
    return True


def drained(queue: Fcfs) -> list[int]:
    order: list[int] = []
    while (taken := queue.next(0.0, anything)) is not None:
        order.append(taken.sequence)
    return order


def test_the_sequence_decides_and_not_the_order_of_coming():
    queue = Fcfs()
    for sequence, model in ((5, "big"), (2, "small"), (9, "small"), (1, "big")):
        queue.add(request(sequence, model), 0.0)

    assert drained(queue) == [1, 2, 5, 9]


def test_a_lane_that_cannot_move_is_passed_over_and_keeps_its_place():
    queue = Fcfs()
    for sequence, model in ((1, "big"), (2, "big"), (3, "small")):
        queue.add(request(sequence, model), 0.0)

    taken = queue.next(0.0, lambda r: r.model == "small")

    assert taken == request(3, "small")
    assert drained(queue) == [1, 2]


def test_each_lane_is_asked_once_however_many_wait_in_it():
    queue = Fcfs()
    for sequence in range(1000):
        queue.add(request(sequence, "big" if sequence % 2 else "small"), 0.0)
    asked: list[int] = []

    def fits(r: Request) -> bool:
        asked.append(r.sequence)
        return False

    assert (queue.next(0.0, fits), asked) == (None, [0, 1])


def test_a_head_that_leaves_gives_its_place_to_the_next_of_its_lane():
    queue = Fcfs()
    for sequence, model in ((1, "big"), (2, "small"), (3, "big")):
        queue.add(request(sequence, model), 0.0)

    assert queue.discard(request(1))
    assert drained(queue) == [2, 3]


def test_who_waits_is_not_taken_in_again():
    queue = Fcfs()
    queue.add(request(1), 0.0)

    with pytest.raises(ValueError, match="'r1' is already waiting"):
        queue.add(request(1), 0.0)
    assert len(queue) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from("abc"), st.sampled_from("+-<"))))
def test_it_agrees_with_a_sorted_list(steps: list[tuple[int, str, str]]):
    queue, model = Fcfs(), dict[int, str]()
    for sequence, name, what in steps:
        if what == "+" and sequence not in model:
            queue.add(request(sequence, name), 0.0)
            model[sequence] = name
        elif what == "-":
            assert queue.discard(request(sequence, name)) == (model.get(sequence) == name)
            if model.get(sequence) == name:
                del model[sequence]
        elif what == "<":
            taken = queue.next(0.0, lambda r, name=name: r.model == name)
            first = min((n for n, m in model.items() if m == name), default=None)
            assert (taken and taken.sequence) == first
            model.pop(-1 if first is None else first, None)
        assert len(queue) == len(model)

    assert drained(queue) == sorted(model)
