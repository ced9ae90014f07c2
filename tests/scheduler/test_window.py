"""Counting what happened lately."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.scheduler.window import SlidingCount


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60))
def test_a_count_is_exact_to_a_tenth_of_its_window(steps: list[tuple[int, bool]]):
    count, now, seen = SlidingCount(10.0), 0.0, list[float]()
    for quarters, happened in steps:
        now += quarters / 4
        if happened:
            count.add(now)
            seen.append(now)
        total = count.total(now)
        assert sum(at > now - 9.0 for at in seen) <= total <= sum(at > now - 10.0 for at in seen)


def test_a_rate_is_told_over_the_time_that_was_seen():
    count = SlidingCount(10.0)

    rates = [count.rate(0.0)]
    for n in range(1, 401):
        count.add(n / 20)
        if n % 100 == 0:
            rates.append(round(count.rate(n / 20), 1))

    assert rates == [0.0, 20.0, 20.1, 20.1, 20.1]


def test_the_first_second_is_never_taken_for_less():
    count = SlidingCount(10.0)
    for _ in range(5):
        count.add(3.0)

    assert count.rate(3.0) == 5.0


def test_a_long_silence_forgets_everything():
    count = SlidingCount(10.0)
    count.add(1.0)

    assert (count.total(1000.0), count.rate(1000.0)) == (0, 0.0)
