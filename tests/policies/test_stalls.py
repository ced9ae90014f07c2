"""Engines that have stopped answering are seen by who waits for them."""

from __future__ import annotations

import pytest

from forebay.policies.prefill_rate import LEAST, PrefillRate
from forebay.policies.stalls import GRACE_S, TIMES, UNKNOWN_RATE, UNKNOWN_S, Stalls


def measured(rate: float = 10_000.0) -> tuple[PrefillRate, Stalls, float]:
    """Measure one endpoint that prefills so many tokens a second."""
    prefill, now = PrefillRate(), 0.0
    stalls = Stalls(prefill)
    for number in range(LEAST):
        tokens = 1000 * (1 + number % 2)
        mark = prefill.placed("a", tokens, now)
        now += tokens / rate
        prefill.began("a", mark, now)
    return prefill, stalls, now


def test_who_answers_in_time_has_not_stalled():
    prefill, stalls, now = measured()
    prefill.placed("a", 5000, now)
    stalls.placed("a", "one", now)
    assert stalls.tokens("a", now + 0.9) == 0
    stalls.ended("a", "one")
    stalls.ended("a", "one")
    assert stalls.tokens("a", now + 100) == 0


def test_the_longer_an_answer_is_late_the_more_it_costs():
    prefill, stalls, now = measured()
    prefill.placed("a", 5000, now)
    stalls.placed("a", "one", now)
    wait, rate = prefill.wait("a", 0, now), prefill.rate("a")
    assert wait is not None
    assert rate is not None
    due = now + TIMES * wait + GRACE_S
    late = [stalls.tokens("a", due + s) for s in (0.0, 1.0, 2.0)]
    assert [round(tokens / rate, 6) for tokens in late] == [0.0, 1.0, 2.0]


def test_the_oldest_decides_and_what_ends_unanswered_is_not_waited_for():
    prefill, stalls, now = measured()
    stalls.placed("a", "one", now)
    stalls.placed("a", "two", now + 10)
    assert stalls.tokens("a", now + 10) > 0
    stalls.ended("a", "one")
    assert stalls.tokens("a", now + 10) == 0
    stalls.forget("a")
    assert stalls.tokens("a", now + 100) == 0
    assert prefill.rate("a") is not None


def test_what_was_not_measured_goes_by_the_fastest_of_the_others():
    prefill, stalls, now = measured()
    stalls.placed("b", "one", now)
    assert stalls.tokens("b", now + UNKNOWN_S) == 0
    assert stalls.tokens("b", now + UNKNOWN_S + 1) == pytest.approx(UNKNOWN_RATE)
    stalls.placed("a", "two", now)
    assert stalls.tokens("b", now + UNKNOWN_S + 1) == pytest.approx(prefill.rate("a"))
