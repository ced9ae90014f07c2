"""Effects and their intervals."""

from __future__ import annotations

from random import Random

import pytest

from forebay.policies.experiments.measures import MEASURES, Pair, alike, effect
from forebay.policies.experiments.tallies import Cell, Observation, Tallies

ALPHA = 0.001


def filled(
    count: int, *, factor: float = 1.0, mix: tuple[float, float] = (0.5, 0.5), seed: int = 1
) -> Tallies:
    """Two cells, the second with prompts that take three times as long."""
    rng, tallies = Random(seed), Tallies()
    for arm, own, share in (("a", 1.0, mix[0]), ("b", factor, mix[1])):
        for _ in range(count):
            bucket = int(rng.random() < share)
            ttft = rng.lognormvariate(-1, 0.5) * own * (3 if bucket else 1)
            tallies.add(Observation(arm, Cell("", bucket), ttft=ttft, length=100.0))
    return tallies


def pair(tallies: Tallies) -> Pair:
    cells = tuple(sorted({*tallies.cells("a"), *tallies.cells("b")}))
    return Pair("a", "b", cells)


def test_a_mean_that_doubled_is_surely_worse_and_half_surely_better():
    slow, fast = filled(400, factor=2.0), filled(400, factor=0.5)
    ttft = MEASURES["ttft"]
    worse, better = effect(slow, pair(slow), ttft, ALPHA), effect(fast, pair(fast), ttft, ALPHA)
    assert worse is not None
    assert better is not None
    assert worse.estimate == pytest.approx(2.0, rel=0.15)
    assert (worse.is_worse(ttft, 0.05), worse.is_better(ttft)) == (True, False)
    assert (better.is_worse(ttft, 0.05), better.is_better(ttft)) == (False, True)


def test_an_arm_that_gets_longer_prompts_is_not_thought_slower():
    tallies = filled(1500, mix=(0.2, 0.8))
    found = effect(tallies, pair(tallies), MEASURES["ttft"], 0.05)
    assert found is not None
    assert found.low < 1 < found.high
    raw = tallies.whole("b").ttft.mean / tallies.whole("a").ttft.mean
    assert raw > 1.5


def test_quantiles_of_all_cells_are_compared_only_while_the_mixes_are_alike():
    same, other = filled(500), filled(500, mix=(0.2, 0.8))
    assert (alike(same, pair(same)), alike(other, pair(other))) == (True, False)
    p99 = MEASURES["ttft_p99"]
    assert effect(same, pair(same), p99, ALPHA) is not None
    assert effect(other, pair(other), p99, ALPHA) is None
    cell = Pair("a", "b", (Cell("", 0),), whole=False)
    assert effect(other, cell, p99, ALPHA) is not None


def test_few_values_have_no_mean_to_compare():
    tallies = filled(15)
    assert effect(tallies, pair(tallies), MEASURES["ttft"], ALPHA) is None


def test_errors_are_compared_even_where_the_control_has_none():
    tallies = Tallies()
    for _ in range(30):
        tallies.add(Observation("b", Cell(), errors=True))
    found = effect(tallies, Pair("a", "b", (Cell(),)), MEASURES["errors"], ALPHA)
    assert found is not None
    assert (found.candidate, found.control_count) == (1.0, 0)
    assert found.low < 0  # nothing is known of the control


def test_a_length_that_halved_is_as_worrying_as_one_that_doubled():
    length = MEASURES["length"]
    for factor in (0.5, 2.0):
        rng, tallies = Random(2), Tallies()
        for arm, own in (("a", 1.0), ("b", factor)):
            for _ in range(300):
                value = rng.lognormvariate(5, 0.6) * own
                tallies.add(Observation(arm, Cell(), length=value))
        found = effect(tallies, Pair("a", "b", (Cell(),)), length, ALPHA)
        assert found is not None
        assert found.is_worse(length, 0.25)


def test_less_goodput_is_worse():
    goodput = MEASURES["goodput"]
    tallies = Tallies()
    for number in range(2000):
        tallies.add(Observation("a", Cell(), good=number % 10 != 0))
        tallies.add(Observation("b", Cell(), good=number % 10 > 4))
    found = effect(tallies, Pair("a", "b", (Cell(),)), goodput, ALPHA)
    assert found is not None
    assert (found.is_worse(goodput, 0.02), found.is_better(goodput)) == (True, False)


def test_what_could_be_told_by_now_gets_smaller():
    told: list[float] = []
    for count in (100, 400, 1600):
        tallies = filled(count)
        found = effect(tallies, pair(tallies), MEASURES["ttft"], ALPHA)
        assert found is not None
        told.append(found.detectable)
    assert told == sorted(told, reverse=True)
    assert told[-1] < 0.12


def test_no_worse_than_a_margin_is_proven_by_the_interval_not_the_estimate():
    few, many = filled(60), filled(20_000)
    ttft = MEASURES["ttft"]
    early, late = (effect(t, pair(t), ttft, ALPHA) for t in (few, many))
    assert early is not None
    assert late is not None
    assert (early.is_not_worse(ttft, 0.05), late.is_not_worse(ttft, 0.05)) == (False, True)
