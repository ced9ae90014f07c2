"""What a plan finds, how soon, and how often wrongly; the full counts are marked `slow`.

`benchmarks/bench_experiments.py` records the full table.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from forebay.policies.experiments.plan import Plan
from forebay.policies.experiments.rehearsal import (
    Ending,
    Fault,
    failing,
    healthy,
    rehearse,
    slow_tail,
    slower,
)

CLASSES = ("batch", "fast")
RAMP = Plan("x", ("a", "b"), {}, stages=(0.05, 0.5), dwell_s=0.0, classes=CLASSES)
MANY = 100
HALF = Plan("x", ("a", "b"), {}, stages=(0.5,), dwell_s=0.0, classes=CLASSES)


def played(plan: Plan, runs: int, most: int, fault: Fault) -> list[Ending]:
    """Play so many runs, many of them on two processes."""
    play = partial(rehearse, plan, most=most, fault=fault)
    if runs < MANY:
        return [play(seed) for seed in range(runs)]
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(play, range(runs), chunksize=8))


def decided(plan: Plan, what: str, runs: int, most: int, fault: Fault = healthy) -> float:
    """Return the share of runs that end so within so many requests of the candidate."""
    endings = played(plan, runs, most, fault)
    return sum(e.decision is not None and e.decision.what == what for e in endings) / runs


def false_decisions(plan: Plan, runs: int, most: int) -> int:
    """Count runs of two equal arms in which the candidate was stopped or promoted."""
    return sum(ending.decision is not None for ending in played(plan, runs, most, healthy))


@pytest.mark.parametrize("plan", [RAMP, HALF], ids=["ramp", "half"])
def test_all_requests_failing_stop_a_candidate_within_20(plan: Plan):
    assert decided(plan, "roll back", 30, 20, failing) == 1.0


def test_ttft_doubled_is_found_within_500():
    assert decided(RAMP, "roll back", 20, 500, slower(2.0)) >= 0.95


def test_a_fifth_more_ttft_is_found_within_3000():
    assert decided(RAMP, "roll back", 4, 3000, slower(1.2)) == 1.0


def test_a_doubled_p99_alone_is_found_within_10000():
    assert decided(HALF, "roll back", 3, 10_000, slow_tail) == 1.0


def test_a_better_candidate_is_promoted():
    assert decided(HALF, "promote", 10, 1500, slower(0.7)) == 1.0


def test_equal_arms_are_left_alone():
    assert false_decisions(RAMP, 15, 800) == 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("plan", [RAMP, HALF], ids=["ramp", "half"])
def test_of_2000_runs_of_equal_arms_few_have_a_decision(plan: Plan):
    assert false_decisions(plan, 2000, 2000) <= 0.05 * 2000


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("plan", [RAMP, HALF], ids=["ramp", "half"])
@pytest.mark.parametrize(
    ("fault", "most"),
    [
        (slower(2.0), 500),
        (slower(1.2), 3000),
        (slow_tail, 10_000),
    ],
)
def test_harm_is_found_in_time_in_95_of_100_runs(plan: Plan, fault: Fault, most: int):
    assert decided(plan, "roll back", 100, most, fault) >= 0.95
