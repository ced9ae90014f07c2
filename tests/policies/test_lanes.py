"""Lanes of waiting requests, against a sorted list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import a_request

from forebay.policies.lanes import Lanes

if TYPE_CHECKING:
    from forebay.policies.contracts import Request


def request(number: int, model: str = "big") -> Request:
    return a_request(number, model=model)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3), st.sampled_from("ab"), st.booleans()),
        max_size=40,
    )
)
def test_the_first_is_the_smallest_of_what_fits(steps: list[tuple[int, int, str, bool]]):
    lanes, model = Lanes(), dict[int, tuple[int, int, str]]()
    for number, place, name, comes in steps:
        if comes and number not in model:
            lanes.add(request(number, name), (place, number))
            model[number] = (place, number, name)
        elif not comes and number in model:
            assert lanes.discard(request(number, model.pop(number)[2]))
        for asked in "ab":
            first = lanes.first(lambda r, asked=asked: r.model == asked)
            best = min((m for m in model.values() if m[2] == asked), default=None)
            assert (first and first.sequence) == (best and best[1])
        assert len(lanes) == len(model)


def test_a_rank_counts_when_it_is_read_and_not_before():
    worth = {"a": 1.0, "b": 2.0}
    lanes = Lanes(lambda r, place: (worth[r.model], place[1]))
    lanes.add(request(1, "a"), (0.0, 1))
    lanes.add(request(2, "b"), (0.0, 2))

    worth["a"] = 3.0
    assert lanes.first(lambda _: True) == request(1, "a")
    assert lanes.reread() == 2
    assert lanes.first(lambda _: True) == request(2, "b")
    assert lanes.reread() == 0
