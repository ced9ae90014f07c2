"""Shortest first, but hardly anybody later than first come, first served would have had it."""

from __future__ import annotations

from random import Random

import pytest

from forebay.policies.contracts import Request, Route
from forebay.policies.ordering_bounded import Bounded, Pace

SOON = 0.97
"""Of the longest wait: when who waits is late."""


def ask(number: int, tokens: int, *, arrived: float = 0.0, model: str = "m") -> Request:
    return Request(
        id=str(number),
        pool="p",
        route=Route.CHAT,
        model=model,
        tenant="",
        sequence=number,
        arrived=arrived,
        deadline=1e9,
        prompt_tokens_estimate=1,
        output_tokens_estimate=tokens,
        uncached_tokens=1,
    )


def drain(ordering: Bounded, now: float = 0.0) -> list[int]:
    taken: list[int] = []
    while (request := ordering.next(now, lambda _: True)) is not None:
        taken.append(request.sequence)
    return taken


def test_the_shortest_goes_first_and_equals_by_age() -> None:
    ordering = Bounded()
    for number, tokens in enumerate((300, 20, 100, 20)):
        ordering.add(ask(number, tokens), 0.0)

    assert (drain(ordering), len(ordering)) == ([1, 3, 2, 0], 0)


def test_pace_knows_when_first_come_first_served_would_have_had_each() -> None:
    pace = Pace()
    for number, size in enumerate((10.0, 10.0, 10.0)):
        pace.came(size, 0, float(number))

    pace.gone(10.0, 5.0)  # whichever left: the first would have
    after_one = pace.bound(5.0)
    pace.gone(10.0, 9.0)
    pace.gone(10.0, 9.0)

    # One left at 5, which took 5: who comes now would wait for two of those.
    assert after_one == pytest.approx(SOON * 10.0)
    assert pace.bound(100.0) == pytest.approx(SOON * 8.0, rel=1e-3)


def test_the_pace_counts_all_the_time_in_which_anybody_waits() -> None:
    pace = Pace()
    pace.came(5.0, 0, 0.0)
    pace.came(10.0, 0, 0.0)
    pace.gone(10.0, 1.0)  # first come, first served both had begun, and the first waits still
    pace.came(5.0, 0, 10.0)
    pace.gone(5.0, 11.0)

    # 15 of work in 11 seconds, and 5 that waits; late is who has waited nearly as long.
    assert pace.bound(11.0) == pytest.approx(SOON * 5 * 11 / 15, rel=1e-3)


def test_a_late_request_goes_before_shorter_ones_and_not_always() -> None:
    ordering = Bounded(share=0.5)
    ordering.add(ask(0, 1000), 0.0)
    for number in range(1, 50):
        ordering.add(ask(number, 100, arrived=number / 100), number / 100)

    # With the first the work before its own is done; after it late ones have had their share.
    first = ordering.next(4.0, lambda _: True)
    assert first is not None
    # That took 4 seconds, and nearly sixty times as much waits: until then nobody is late.
    second = ordering.next(200.0, lambda _: True)
    assert second is not None
    taken = [first.sequence, second.sequence, *drain(ordering, 6000.0)[:4]]
    assert taken == [1, 2, 0, 3, 4, 5]


@pytest.mark.parametrize("seed", range(3))
def test_nearly_nobody_waits_much_longer_than_first_come_first_served(seed: int) -> None:
    """One server, busy at .95 with rushes: the mean wait halves, and the tail hardly grows."""
    rng = Random(seed)
    arrivals: list[tuple[float, int]] = []
    clock = 0.0
    for number in range(6000):
        rate = 1.6 if number // 500 % 3 == 0 else 0.8
        clock += rng.expovariate(rate)
        arrivals.append((clock, max(1, round(rng.lognormvariate(5.0, 1.0)))))
    mean = sum(tokens for _, tokens in arrivals) / len(arrivals)

    fcfs = sorted(_waits(arrivals, None, mean))
    bounded = sorted(_waits(arrivals, Bounded(), mean))

    assert sum(bounded) < 0.65 * sum(fcfs)
    assert bounded[int(0.99 * len(bounded))] < 1.2 * fcfs[int(0.99 * len(fcfs))]


def _waits(arrivals: list[tuple[float, int]], ordering: Bounded | None, mean: float) -> list[float]:
    """Serve one at a time; None is first come, first served."""
    if ordering is None:
        waits: list[float] = []
        free = 0.0
        for arrived, tokens in arrivals:
            start = max(free, arrived)
            waits.append(start - arrived)
            free = start + 0.95 * tokens / mean
        return waits
    waits, free, index = [], 0.0, 0
    while len(waits) < len(arrivals):
        if not len(ordering):
            free = max(free, arrivals[index][0])
        while index < len(arrivals) and arrivals[index][0] <= free:
            arrived, tokens = arrivals[index]
            ordering.add(ask(index, tokens, arrived=arrived), arrived)
            index += 1
        request = ordering.next(free, lambda _: True)
        assert request is not None
        waits.append(free - request.arrived)
        free += 0.95 * request.output_tokens_estimate / mean
    return waits


def test_a_waiting_request_whose_prefix_became_cached_moves_up() -> None:
    cached: dict[str, int] = {}
    ordering = Bounded(uncached=lambda request: cached.get(request.id, 2000))
    ordering.add(ask(0, 2000), 0.0)
    ordering.add(ask(1, 50), 0.0)
    cached |= {"0": 0, "1": 9000}

    assert (drain(ordering, 1.0), ordering.rank_changes) == ([0, 1], 2)


def test_one_that_left_is_forgotten_and_leaves_the_account_even() -> None:
    ordering = Bounded()
    long, short = ask(0, 900), ask(1, 10)
    ordering.add(long, 0.0)
    ordering.add(short, 0.0)

    assert [ordering.discard(long), ordering.discard(long), len(ordering)] == [True, False, 1]
    assert drain(ordering, 3.0) == [1]
    assert ordering.pace.bound(99.0) == pytest.approx(SOON * 3.0)


def test_what_does_not_fit_holds_up_nobody() -> None:
    ordering = Bounded()
    ordering.add(ask(0, 10, model="a"), 0.0)
    ordering.add(ask(1, 500, model="b"), 0.0)

    chosen = ordering.next(0.0, lambda request: request.model == "b")

    assert (chosen is not None and chosen.sequence, len(ordering)) == (1, 1)


def test_a_request_that_comes_back_after_minutes_puts_off_nobodys_turn() -> None:
    pace = Pace()
    ordering = Bounded(pace=pace)
    ordering.add(
        ask(0, 10, arrived=0.0), 900.0
    )  # tried before, and back after a quarter of an hour
    ordering.add(ask(1, 10, arrived=900.0), 900.0)

    assert drain(ordering, 901.0) == [0, 1]
    assert pace.bound(901.0) == pytest.approx(SOON)


@pytest.mark.parametrize(("placed", "taken"), [(0, [1, 2, 0, 3]), (150, [1, 2, 3, 4])])
def test_one_in_a_hundred_is_excused_where_it_is_large(placed: int, taken: list[int]) -> None:
    ordering = Bounded(share=0.5, large=0.0)
    for number in range(1000, 1000 + placed):
        ordering.started(ask(number, 100), 0.0, 0.0)
    ordering.add(ask(0, 1000), 0.0)
    for number in range(1, 150):
        ordering.add(ask(number, 100, arrived=number / 100), number / 100)

    order = [ordering.next(now, lambda _: True) for now in (4.0, 200.0)]
    order += [ordering.next(60_000.0, lambda _: True) for _ in range(2)]
    assert [request and request.sequence for request in order] == taken


def test_who_was_late_is_made_good_for_before_anybody_is_excused() -> None:
    pace = Pace()
    for _ in range(200):
        pace.placed()
        pace.came(100.0, 50, 0.0)
    pace.was_late()

    assert [pace.excuse(50), pace.excuse(400)] == [False, False]
    pace.placed()
    for _ in range(100):
        pace.placed()
    assert [pace.excuse(50), pace.excuse(400), pace.excuse(400)] == [False, True, False]


@pytest.mark.parametrize(
    ("passed_by", "placed_before", "placed_after", "excused"),
    [(106, 0, 120, True), (116, 0, 120, False), (116, 120, 100, True)],
    ids=["waited 1.06 bounds", "waited 1.16 bounds", "excused"],
)
def test_late_is_who_was_not_excused_and_waited_a_tenth_past_the_bound(
    passed_by: int, placed_before: int, placed_after: int, *, excused: bool
) -> None:
    """Whoever was late takes one of those that may be, which is then missing for another."""
    ordering = Bounded()
    ordering.add(ask(0, 10_000), 0.0)
    for number in range(1, passed_by):
        ordering.add(ask(number, 100, arrived=float(number)), float(number))
        assert ordering.next(float(number), lambda request: request.sequence > 0)
    for _ in range(placed_before):
        ordering.pace.placed()

    # First come, first served would have had each of them wait for a hundred others.
    assert drain(ordering, float(passed_by)) == [0]
    for _ in range(placed_after):
        ordering.pace.placed()
    assert ordering.pace.excuse(380) is excused


def test_whoever_is_shorter_than_half_of_all_is_never_excused() -> None:
    pace = Pace()
    for bin_ in (10, 20):
        for _ in range(100):
            pace.came(1.0, bin_, 0.0)
            pace.gone(1.0, 0.0)
    for _ in range(1000):
        pace.placed()

    assert [pace.excuse(bin_) for bin_ in (10, 20)] == [False, True]


def test_one_that_is_predicted_anew_counts_once() -> None:
    told: list[tuple[float, list[bool]]] = []
    for guesses in (0, 3):
        ordering = Bounded()
        for number in range(200):
            now = float(number)
            for guess in range(guesses):
                ordering.add(ask(number, 50 * guess, arrived=now), now)
                assert ordering.discard(ask(number, 50 * guess))
            ordering.add(ask(number, 100 + number, arrived=now), now)
        for number in range(50):
            ordering.next(200.0 + number, lambda _: True)
        large = [ordering.pace.is_large(bin_, 0.02) for bin_ in range(150)]
        told.append((ordering.pace.bound(300.0), large))

    assert told[0] == told[1]
