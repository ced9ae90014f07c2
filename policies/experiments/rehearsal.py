"""Plays an experiment with made-up requests: what a plan would find, how soon, how often wrongly.

Requests of both arms are drawn from one world (log-normal times, four prompt buckets, some errors);
a `Fault` is what the candidate does to its own. The plan is judged after each of the candidate's
first fifty requests and after every twentieth later, as somebody would who looks all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import exp
from random import Random
from typing import TYPE_CHECKING

from .ramp import State, apply, judge, weights
from .tallies import Cell, Observation, Tallies

if TYPE_CHECKING:
    from .plan import Plan
    from .ramp import Decision

SIGMA = 0.5
"""Of the logarithm of TTFT."""
_P98 = exp(SIGMA * 2.0537)
"""The 98th percentile of a log-normal, over its median."""
_MIX = (0.4, 0.3, 0.2, 0.1)
_FAR = 1e9
"""A time at which no dwell is left."""
_FIRST, _EVERY = 50, 20
"""How many of the candidate's requests are looked at one by one, and then at every which."""

Fault = Callable[[float, float], tuple[float, bool]]
"""From a TTFT and its median to the candidate's TTFT, and whether the request fails."""


def healthy(ttft: float, _median: float) -> tuple[float, bool]:
    """Do as the control does."""
    return ttft, False


def slower(factor: float) -> Fault:
    """Multiply every TTFT."""
    return partial(_slowed, factor)  # no lambda: another process has to be given it


def _slowed(factor: float, ttft: float, _median: float) -> tuple[float, bool]:
    return ttft * factor, False


def slow_tail(ttft: float, median: float) -> tuple[float, bool]:
    """Double what lies past the 98th percentile: p99 doubles, the median and p95 stay."""
    return (2 * ttft if ttft > median * _P98 else ttft), False


def failing(ttft: float, _median: float) -> tuple[float, bool]:
    """Fail every request."""
    return ttft, True


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run ended."""

    decision: Decision | None
    requests: int
    """Of the candidate, when it was decided, or all."""


def request(plan: Plan, rng: Random, *, share: float, fault: Fault) -> Observation:
    """Draw one request; it is the candidate's with a chance of `share`."""
    control, candidate = plan.arms
    arm = candidate if rng.random() < share else control
    bucket = rng.choices(range(4), _MIX)[0]
    cell = Cell(rng.choice(plan.classes), bucket)
    median = 0.2 * (1 + bucket)
    ttft, fails = rng.lognormvariate(0, SIGMA) * median, rng.random() < 0.005
    if arm == candidate:
        ttft, more = fault(ttft, median)
        fails = fails or more
    if fails:
        return Observation(arm, cell, errors=True)
    length = rng.lognormvariate(5, 0.8)
    return Observation(
        arm,
        cell,
        ttft=ttft,
        tpot=rng.lognormvariate(-4, 0.3),
        e2e=ttft + 0.02 * length,
        length=length,
        empty=rng.random() < 0.002,
        truncated=rng.random() < 0.1,
    )


def rehearse(plan: Plan, seed: int, *, most: int, fault: Fault = healthy) -> Ending:
    """Play one run, stage by stage, until the candidate is stopped or promoted.

    It ends, too, when the candidate has had `most` requests over all stages.
    """
    rng = Random(seed)  # noqa: S311 - a simulation
    tallies, state, had = Tallies(), State(), 0
    candidate = plan.candidates[0]
    share = weights(plan, state)[candidate]
    while had < most:
        seen = request(plan, rng, share=share, fault=fault)
        tallies.add(seen)
        if seen.arm != candidate:
            continue
        had += 1
        if had > _FIRST and had % _EVERY:
            continue
        decision = judge(plan, state, tallies, _FAR)
        if decision is None:
            continue
        if decision.what != "advance":
            return Ending(decision, had)
        state, tallies = apply(plan, state, decision), Tallies()
        share = weights(plan, state)[candidate]
    return Ending(None, had)
