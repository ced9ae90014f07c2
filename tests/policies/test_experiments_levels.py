"""Cells of different speed, laid over one another."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from forebay.policies.experiments.levels import levelled
from forebay.policies.experiments.measures import MEASURES, Pair, effect
from forebay.policies.experiments.tallies import Cell, Observation, Sketch, Tallies

if TYPE_CHECKING:
    from collections.abc import Callable

P99 = MEASURES["ttft_p99"]
CELLS = tuple(Cell("", bucket) for bucket in range(4))


def sketch(values: list[float]) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


def lognormal(rng: Random, sigma: float = 0.5) -> float:
    return rng.lognormvariate(0, sigma)


def exponential(rng: Random) -> float:
    return rng.expovariate(1)


def pareto(rng: Random) -> float:
    return rng.paretovariate(1.2)


def with_far_ones(rng: Random) -> float:
    return rng.lognormvariate(0, 0.2) * (20 if rng.random() < 0.012 else 1)


def test_cells_of_one_shape_and_different_speed_become_one_distribution():
    rng = Random(1)
    values = [lognormal(rng) for _ in range(4000)]
    fast, slow = sketch(values), sketch([8 * value for value in values])
    (both, _), alone = levelled([fast, slow], [Sketch(), Sketch()], 0.99), fast.quantile(0.99)
    assert both.count == 8000
    assert both.quantile(0.99) / both.quantile(0.5) == pytest.approx(
        alone / fast.quantile(0.5), rel=0.05
    )
    assert alone < both.quantile(0.99) < 8 * alone


def test_a_single_cell_stays_as_it_is():
    mine, other = sketch([1.0, 2.0]), sketch([3.0])
    assert levelled([mine], [other], 0.5) == (mine, other)


def test_a_cell_of_too_few_values_is_left_out_of_both_arms():
    many, few = sketch([1.0] * 30), sketch([5.0] * 9)
    mine, other = levelled([many, few], [many, few], 0.5)
    assert (mine.count, other.count) == (30, 30)


def test_nothing_at_all_is_levelled_to_nothing():
    assert levelled([], [], 0.99) == (Sketch(), Sketch())
    assert levelled([Sketch(), Sketch()], [Sketch(), Sketch()], 0.99) == (Sketch(), Sketch())


def test_values_moved_by_a_shift_have_the_moments_of_moved_values():
    moved, values = Sketch(), [0.3, 1.0, 7.0]
    moved.merge(sketch(values), 35)
    direct = sketch([value * 1.02**35 for value in values])
    assert moved.count == direct.count
    assert moved.mean == pytest.approx(direct.mean)
    assert moved.log_mean == pytest.approx(direct.log_mean)
    assert moved.log_deviations == pytest.approx(direct.log_deviations)


def test_a_tail_that_doubled_among_short_prompts_only_is_seen_among_all():
    rng, tallies = Random(2), Tallies()
    for _ in range(24_000):
        bucket = rng.choices(range(4), (0.7, 0.1, 0.1, 0.1))[0]
        for arm in "ab":
            value = lognormal(rng)
            if arm == "b" and bucket == 0 and value > 2.8:
                value *= 2
            tallies.add(Observation(arm, CELLS[bucket], ttft=value * (1 + 4 * bucket)))
    found = effect(tallies, Pair("a", "b", CELLS), P99, 0.001)
    assert found is not None
    assert found.is_worse(P99, 0.25)
    raw = [tallies.whole(arm).ttft.quantile(0.99) for arm in "ba"]
    assert raw[0] / raw[1] < 1.1


SHAPES: dict[str, list[Callable[[Random], float]]] = {
    "alike": [lognormal] * 4,
    "each its own": [lognormal, exponential, pareto, with_far_ones],
    "far ones": [with_far_ones] * 4,
    "wide and narrow": [lognormal, partial(lognormal, sigma=1.2), lognormal, pareto],
}


def errs(shapes: list[Callable[[Random], float]], *, alpha: float, share: float, seed: int) -> bool:
    """Play two equal arms, looked at after each 20 of the candidate; whether they ever differ."""
    rng, tallies, had = Random(seed), Tallies(), 0
    while had < 600:
        bucket = rng.choices(range(4), (0.5, 0.3, 0.15, 0.05))[0]
        arm = "b" if rng.random() < share else "a"
        tallies.add(Observation(arm, CELLS[bucket], ttft=shapes[bucket](rng) * (1 + bucket)))
        had += arm == "b"
        if arm == "b" and had % 20 == 0:
            found = effect(tallies, Pair("a", "b", CELLS), P99, alpha)
            if found is not None and not found.low <= 1 <= found.high:
                return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_levels_that_are_only_estimated_cost_no_more_than_alpha(
    shapes: list[Callable[[Random], float]], share: float
):
    wrong = sum(errs(shapes, alpha=0.2, share=share, seed=seed) for seed in range(200))
    assert wrong <= 0.2 * 200
