"""Rungs and lines of waiters, against sorted lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import a_request

from forebay.policies.ladder import Ages, Ladder, Waiter

if TYPE_CHECKING:
    from forebay.policies.contracts import Request


def request(number: int, model: str = "big", arrived: float = 0.0) -> Request:
    return a_request(number, model=model, arrived=arrived)


STEPS = st.tuples(
    st.sampled_from("amr"), st.integers(0, 9), st.integers(1, 30), st.sampled_from("ab")
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_first_is_the_smallest_of_what_fits(steps: list[tuple[str, int, int, str]]):
    ladder, waiters = Ladder(), dict[int, Waiter]()
    for what, number, size, name in steps:
        if what == "a" and number not in waiters:
            waiters[number] = ladder.add(request(number, name), float(size), size // 8)
        elif what == "r" and number in waiters:
            ladder.remove(waiters.pop(number))
        elif what == "m":
            for rung in list(ladder):
                if rung.head.size < size:
                    ladder.move(rung.head, float(size), size // 8)
        for asked in "ab":
            first = ladder.first(lambda r, asked=asked: r.model == asked)
            alike = [w for w in waiters.values() if w.request.model == asked]
            best = min(alike, key=lambda w: (w.size, w.request.sequence), default=None)
            assert first is best
        assert sum(len(rung) for rung in ladder) == len(waiters)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_oldest_is_whoever_came_first_and_fits(steps: list[tuple[str, int, int, str]]):
    ages, ladder, waiters = Ages(), Ladder(), dict[int, Waiter]()
    for serial, (what, number, arrived, name) in enumerate(steps):
        if what == "a" and number not in waiters:
            asked = request(number, name, float(arrived * 100 + serial // 3))
            waiters[number] = ladder.add(asked, 1.0, 0)
            ages.add(waiters[number])
        elif what == "r" and number in waiters:
            ladder.remove(waiters.pop(number))
        for model in "ab":
            before = arrived * 100.0
            alike = [w for w in waiters.values() if w.request.model == model]
            best = min((w for w in alike if w.arrived < before), key=_age, default=None)
            assert ages.oldest(before, lambda r, model=model: r.model == model) is best


def _age(waiter: Waiter) -> tuple[float, int]:
    return waiter.arrived, waiter.request.sequence


def test_those_who_left_from_the_middle_are_not_kept():
    ladder, ages = Ladder(), Ages()
    first = ladder.add(request(0), 1.0, 0)
    ages.add(first)
    for number in range(1, 5000):
        waiter = ladder.add(request(number, arrived=float(number)), 2.0, 0)
        ages.add(waiter)
        ladder.remove(waiter)

    (rung,) = ladder
    assert (len(rung), len(rung.heap) < 200) == (1, True)
    assert ages.oldest(1.0, lambda _: True) is first
    assert ages.held < 200
