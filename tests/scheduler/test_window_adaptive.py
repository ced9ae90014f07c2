"""The adaptive window, in front of a plain model of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from forebay.scheduler.window_adaptive import AdaptiveWindow, WindowSettings


@dataclass
class Engine:
    """Runs n at once at `base + slope * n` seconds a token; past `seats` a first token waits."""

    base: float = 0.010
    slope: float = 0.001
    seats: int = 1000
    jitter: float = 0.1

    def times(self, in_flight: int, rng: Random) -> tuple[float, float]:
        noise = 1 + self.jitter * (2 * rng.random() - 1)
        queued = max(0, in_flight - self.seats)
        return noise * (0.05 + 0.1 * queued), noise * (self.base + self.slope * in_flight)


def settle(window: AdaptiveWindow, engine: Engine, ended: int, demand: int = 10_000) -> list[int]:
    """Let requests end one by one with the window as full as demand makes it."""
    rng, seen = Random(1), list[int]()
    for _ in range(ended):
        in_flight = min(window.limit, demand)
        window.placed(in_flight)
        window.ended(*engine.times(in_flight, rng))
        seen.append(window.limit)
    return seen


def test_it_settles_where_tpot_meets_its_target():
    window = AdaptiveWindow(WindowSettings(tpot=0.05))

    seen = settle(window, Engine(), 20_000)[10_000:]

    assert 28 <= min(seen) <= max(seen) <= 42  # 40 ms for tokens at 1 ms a request: 40 at most


def test_it_settles_where_ttft_meets_its_target():
    window = AdaptiveWindow(WindowSettings(ttft=0.5, tpot=1.0))

    seen = settle(window, Engine(seats=100, slope=0.0), 40_000)[20_000:]

    assert 78 <= min(seen) <= max(seen) <= 106


def test_it_follows_a_drop_of_capacity_within_a_few_rounds_and_comes_back():
    window, engine = AdaptiveWindow(WindowSettings(tpot=0.05)), Engine()
    settle(window, engine, 10_000)
    engine.slope = 0.004  # a quarter of the capacity is left: ten at once

    dropped = settle(window, engine, 1000)
    assert dropped[200] <= 20
    assert 6 <= min(dropped[500:]) <= max(dropped[500:]) <= 11

    engine.slope = 0.001
    assert 28 <= settle(window, engine, 10_000)[-1] <= 42


def test_it_learns_nothing_from_a_window_that_is_not_full():
    window = AdaptiveWindow(WindowSettings(start=64))

    assert set(settle(window, Engine(), 5000, demand=3)) == {64}


def test_it_stays_within_its_bounds():
    slow, fast = Engine(base=10.0), Engine(base=0.0, slope=0.0)

    assert settle(AdaptiveWindow(WindowSettings(least=2)), slow, 3000)[-1] == 2
    assert settle(AdaptiveWindow(WindowSettings(most=100)), fast, 3000)[-1] == 100


@pytest.mark.parametrize(("ttft", "tpot"), [(None, None)])
def test_a_request_without_times_says_nothing(ttft: float | None, tpot: float | None):
    window = AdaptiveWindow(WindowSettings(start=8))
    for _ in range(100):
        window.placed(8)
        assert not window.ended(ttft, tpot)

    assert window.limit == 8
