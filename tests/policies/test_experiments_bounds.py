"""Intervals that hold at all times of looking."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from forebay.policies.experiments.bounds import mean_radius, rank_bounds, share_bounds


def test_a_rate_without_observations_may_be_anything():
    assert share_bounds(0, 0, 0.05) == (0.0, 1.0)


def test_the_interval_of_a_rate_narrows_around_it():
    widths: list[float] = []
    for total in (10, 100, 1000, 10_000):
        low, high = share_bounds(total // 10, total, 0.05)
        assert low < 0.1 < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.025


def test_failures_only_are_told_from_one_in_five_within_a_handful():
    sure = next(n for n in range(1, 50) if share_bounds(n, n, 0.001)[0] > 0.2)
    assert sure == 6


def test_none_of_many_and_all_of_many_touch_the_ends():
    assert share_bounds(0, 100, 0.05)[0] == 0.0
    assert share_bounds(100, 100, 0.05)[1] == 1.0


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_a_rate_leaves_its_interval_at_any_time_in_few_runs_only(rate: float):
    rng, wrong, runs = Random(7), 0, 300
    for _ in range(runs):
        hits = 0
        for total in range(1, 600):
            hits += rng.random() < rate
            if total % 10 == 0 or total < 20:
                low, high = share_bounds(hits, total, 0.1)
                if not low <= rate <= high:
                    wrong += 1
                    break
    assert wrong <= 0.1 * runs


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_quantile_leaves_its_ranks_at_any_time_in_few_runs_only(share: float):
    rng, wrong, runs = Random(11), 0, 300
    for _ in range(runs):
        below = 0
        for total in range(1, 1000):
            below += rng.random() < share
            if total % 20 == 0:
                low, high = rank_bounds(total, share, 0.1)
                if not low <= below <= high:
                    wrong += 1
                    break
    assert wrong <= 0.1 * runs


def test_the_99th_percentile_of_few_values_has_no_upper_bound():
    low, high = rank_bounds(50, 0.99, 0.01)
    assert (high, low < 50) == (50, True)


def test_a_mean_has_no_radius_without_variance():
    assert mean_radius(0.0, 0.05, scale=0.1) == inf


def test_a_mean_of_skewed_values_leaves_its_radius_in_few_runs_only():
    rng, wrong, runs = Random(3), 0, 200
    for _ in range(runs):
        sums = squares = 0.0
        for count in range(1, 800):
            value = rng.expovariate(1.0)
            sums, squares = sums + value, squares + value * value
            if count >= 40 and count % 10 == 0:
                variance = (squares - sums * sums / count) / (count - 1) / count
                if abs(sums / count - 1) > mean_radius(variance, 0.05, scale=0.2):
                    wrong += 1
                    break
    assert wrong <= 0.05 * runs


def test_a_smaller_alpha_asks_for_more():
    assert mean_radius(0.01, 0.001, scale=0.15) > mean_radius(0.01, 0.05, scale=0.15)
