"""Intake is slowed while far less is cached than usual, and not longer."""

from __future__ import annotations

import pytest

from forebay.scheduler.avalanche import RECENT_S, GuardSettings, HitRateGuard


class Traffic:
    """Ten prompts a second of a thousand tokens each."""

    def __init__(self, **settings: float) -> None:
        self.guard = HitRateGuard(GuardSettings(**settings))  # type: ignore[arg-type] - as named
        self.now = 0.0
        self.changes: list[tuple[float, bool]] = []

    def run(self, seconds: float, hit: float, *, reported: float | None = None) -> None:
        for _ in range(int(seconds * 10)):
            self.now = round(self.now + 0.1, 3)
            self.guard.placed(1000, int(hit * 1000), self.now)
            if reported is not None:
                self.guard.reported(int(hit * 1000), int(reported * 1000), self.now)
            if self.guard.tick(self.now):
                self.changes.append((self.now, self.guard.slowed))


def test_a_steady_hit_rate_slows_nothing():
    for hit in (0.0, 0.05, 0.5, 0.9):
        traffic = Traffic()
        traffic.run(600, hit)
        assert (traffic.changes, traffic.guard.share) == ([], 1.0)


def test_a_collapse_slows_intake_so_that_the_prefill_in_flight_stays_what_it_was():
    traffic = Traffic()
    traffic.run(300, 0.8)
    traffic.run(60, 0.2)
    ((at, slowed),) = traffic.changes
    assert slowed
    assert 300 < at < 300 + 1.5 * RECENT_S
    assert traffic.guard.share == pytest.approx(0.25, abs=0.03)
    assert traffic.guard.usual == pytest.approx(0.8, abs=0.03)
    assert traffic.guard.times == 1


def test_it_ends_when_most_of_the_usual_rate_is_back_and_the_share_grows_until_then():
    traffic = Traffic()
    traffic.run(300, 0.8)
    traffic.run(30, 0.0)
    shares: list[float] = []
    for _ in range(60):
        traffic.run(1, 0.8)
        shares.append(traffic.guard.share)
    assert [slowed for _, slowed in traffic.changes] == [True, False]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.25, abs=0.05)
    assert shares[-1] == 1.0


def test_a_rate_that_swings_about_the_mark_does_not_switch_it_on_and_off():
    traffic = Traffic()
    traffic.run(300, 0.8)
    traffic.run(60, 0.3)
    for _ in range(20):
        traffic.run(5, 0.45)
        traffic.run(5, 0.35)
    assert [slowed for _, slowed in traffic.changes] == [True]


def test_a_collapse_that_engines_report_is_seen_although_hits_were_predicted():
    traffic = Traffic()
    traffic.run(300, 0.8, reported=0.8)
    traffic.run(60, 0.8, reported=0.1)
    assert [slowed for _, slowed in traffic.changes] == [True]


def test_what_lasts_becomes_the_usual():
    traffic = Traffic(longest=120.0)
    traffic.run(300, 0.8)
    traffic.run(400, 0.1)
    assert [slowed for _, slowed in traffic.changes] == [True, False]
    assert traffic.guard.usual == pytest.approx(0.1, abs=0.02)
    assert traffic.guard.share == 1.0


def test_some_share_of_the_places_is_always_left():
    traffic = Traffic(floor=0.4)
    traffic.run(300, 0.95)
    traffic.run(60, 0.0)
    assert traffic.guard.share == 0.4


def test_a_few_prompts_prove_nothing():
    guard = HitRateGuard(GuardSettings())
    for second in range(600):
        guard.placed(1000, 800, second)
        guard.tick(second)
    for second in range(600, 605):
        guard.placed(1000, 0, second)
        assert not guard.tick(second)


def test_silence_is_no_collapse():
    traffic = Traffic()
    traffic.run(300, 0.8)
    assert not any(traffic.guard.tick(300 + second) for second in range(10_000))
