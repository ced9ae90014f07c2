"""Endpoints' prefill rates are found from the times of first bytes."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

import pytest

from forebay.policies.prefill_rate import LEAST, PrefillRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.prefill_rate import Mark


class Engine:
    """Prefills one prompt after the other, at a true rate; each takes a fixed time besides."""

    def __init__(self, rate: float, *, fixed_s: float = 0.03, noise: float = 0.0) -> None:
        self.measured = PrefillRate()
        self.rate = rate
        self._fixed_s = fixed_s
        self._noise = noise
        self._rng = Random(4)
        self._free_at = 0.0
        self._begun: deque[tuple[float, Mark]] = deque()

    def send(self, tokens: int, now: float) -> None:
        while self._begun and self._begun[0][0] <= now:
            at, mark = self._begun.popleft()
            self.measured.began("e", mark, at)
        spread = self._rng.uniform(1 - self._noise, 1 + self._noise)
        self._free_at = max(self._free_at, now) + tokens / self.rate * spread
        self._begun.append((self._free_at + self._fixed_s, self.measured.placed("e", tokens, now)))

    def run(
        self, prompts: int, *, use: float, size: Callable[[Random], int], start: float
    ) -> float:
        """Send prompts at random that keep it busy for this share of the time."""
        now = start
        for _ in range(prompts):
            tokens = size(self._rng)
            now += self._rng.expovariate(use * self.rate / 2000)
            self.send(tokens, now)
        return now


def mixed(rng: Random) -> int:
    return min(20_000, int(rng.expovariate(1 / 2000)) + 1)


def same(_rng: Random) -> int:
    return 2000


@pytest.mark.parametrize("rate", [500.0, 8_000.0, 100_000.0])
@pytest.mark.parametrize("use", [0.2, 0.6, 0.95])
def test_the_rate_is_found_within_a_sixth_for_prompts_of_mixed_lengths(rate: float, use: float):
    engine = Engine(rate, noise=0.2)
    engine.run(200, use=use, size=mixed, start=0.0)
    assert engine.measured.rate("e") == pytest.approx(rate, rel=1 / 6)


@pytest.mark.parametrize("use", [0.2, 0.9])
def test_prompts_of_one_length_make_it_seem_slower_never_much_faster(use: float):
    engine = Engine(8000.0, noise=0.2)
    engine.run(200, use=use, size=same, start=0.0)
    found = engine.measured.rate("e")
    assert found is not None
    assert 0.75 * 8000 <= found <= 1.15 * 8000


@pytest.mark.parametrize("change", [0.25, 4.0])
def test_an_endpoint_that_becomes_slower_or_faster_is_followed(change: float):
    engine = Engine(8000.0, noise=0.1)
    now = engine.run(300, use=0.5, size=mixed, start=0.0)
    engine.rate = 8000.0 * change
    engine.run(300, use=0.5, size=mixed, start=now)
    assert engine.measured.rate("e") == pytest.approx(8000 * change, rel=0.2)


def test_nothing_is_told_before_enough_was_seen():
    engine = Engine(8000.0)
    for number in range(LEAST):
        assert engine.measured.rate("e") is None
        assert engine.measured.wait("e", 100, float(number)) is None
        engine.send(1000, float(number))
    engine.send(1000, 100.0)
    assert engine.measured.rate("e") is not None


def test_the_wait_grows_with_what_was_placed_and_fades_with_time():
    engine = Engine(1000.0, fixed_s=0.0)
    engine.run(300, use=0.5, size=mixed, start=0.0)
    measured, now = engine.measured, 1e6
    assert measured.wait("e", 1000, now) == pytest.approx(1.0, abs=0.2)
    measured.placed("e", 4000, now)
    assert measured.wait("e", 1000, now) == pytest.approx(5.0, rel=0.15)
    assert measured.wait("e", 1000, now + 2) == pytest.approx(3.0, rel=0.2)
    measured.restarted("e")
    assert measured.wait("e", 1000, now + 2) == pytest.approx(1.0, abs=0.2)


def test_a_first_byte_says_that_all_before_it_is_done():
    engine = Engine(1000.0, fixed_s=0.0)
    engine.run(300, use=0.5, size=mixed, start=0.0)
    measured, now = engine.measured, 1e6
    measured.placed("e", 5000, now)
    mark = measured.placed("e", 100, now)
    measured.placed("e", 300, now + 3)
    assert measured.wait("e", 0, now + 3) == pytest.approx(2.4, rel=0.2)
    measured.began("e", mark, now + 3)  # sooner than was thought
    assert measured.wait("e", 0, now + 3) == pytest.approx(0.3, abs=0.25)


def test_a_forgotten_endpoint_begins_anew():
    engine = Engine(1000.0)
    engine.run(50, use=0.5, size=mixed, start=0.0)
    mark = engine.measured.placed("e", 10, 1e6)
    engine.measured.forget("e")
    engine.measured.placed("e", 1, 1e6)
    engine.measured.began("e", mark, 1e6 + 1)
    assert engine.measured.rate("e") is None
    engine.measured.restarted("other")


def test_a_single_stall_is_not_taken_for_slowness():
    engine = Engine(10_000.0)
    now = engine.run(200, use=0.3, size=mixed, start=0.0)
    usual = engine.measured.wait("e", 2000, now + 60)
    mark = engine.measured.placed("e", 100, now + 60)
    engine.measured.began("e", mark, now + 80)
    now = engine.run(8, use=0.1, size=same, start=now + 100)
    after = engine.measured.wait("e", 2000, now + 60)
    assert after == pytest.approx(usual, rel=0.3)


@pytest.mark.parametrize(("tokens", "took"), [(0, 0.1), (1000, 0.0)], ids=["cached", "at once"])
def test_prompts_that_tell_no_rate_are_borne(tokens: int, took: float):
    measured = PrefillRate()
    for number in range(2 * LEAST):
        mark = measured.placed("e", tokens, float(number))
        measured.began("e", mark, number + took)
    assert measured.rate("e") is None
    assert measured.wait("e", 1000, 100.0) is None
    assert measured.slowness("e") == 1.0


@pytest.mark.parametrize(("rate", "slowness"), [(9_000.0, 1.0), (2_000.0, 3.33), (100.0, 8.0)])
def test_an_endpoint_that_is_much_slower_than_the_fastest_is_known_for_it(
    rate: float, slowness: float
):
    measured = PrefillRate()
    for name, own in (("fast", 10_000.0), ("e", rate)):
        now = 0.0
        for number in range(4 * LEAST):
            tokens = 1000 * (1 + number % 3)
            mark = measured.placed(name, tokens, now)
            now += tokens / own
            measured.began(name, mark, now)
    assert measured.slowness("e") == pytest.approx(slowness, rel=0.1)
    assert measured.slowness("fast") == measured.slowness("new") == 1.0


def noticed(slower: float, size: Callable[[Random], int], *, seeds: int = 20) -> float:
    """Return how often the second of two engines counts as slow, over 200 noisy prompts of each."""
    slow = 0
    for seed in range(seeds):
        measured, rng = PrefillRate(), Random(seed)
        for number in range(200):
            for name, times in (("a", 1.0), ("b", slower)):
                tokens = 1800 if number == 0 else size(rng)
                took = 0.022 + tokens / 45_000 * times + rng.expovariate(40)
                took += 0.3 if rng.random() < 0.03 else 0.0
                mark = measured.placed(name, tokens, float(number))
                measured.began(name, mark, number + took)
            slow += measured.slowness("b") > 1.0
    return slow / (200 * seeds)


def test_noise_is_not_taken_for_slowness_where_nearly_all_is_cached():
    assert noticed(1.0, lambda rng: rng.randrange(130, 220)) < 0.05
    assert noticed(1.0, mixed) < 0.01
    assert noticed(5.0, mixed) > 0.8
