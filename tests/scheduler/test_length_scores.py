"""Measures of predictions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.scheduler.length.scores import buckets_of, ks, psi, tau_b, tau_by_model


def slow_tau(x: list[int], y: list[int]) -> float:
    signs = [
        (np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in combinations(range(len(x)), 2)
    ]
    same = sum(a * b for a, b in signs)
    apart = sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs)
    return float(same / np.sqrt(apart)) if apart else float("nan")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=40))
def test_tau_counts_pairs(pairs: list[tuple[int, int]]):
    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    assert tau_b(x, y) == pytest.approx(slow_tau(x, y), nan_ok=True)


def test_tau_by_model_is_the_mean_over_models_with_a_few_answers():
    truth = np.array([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 9], dtype=float)
    said = np.array([1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0], dtype=float)
    models = np.array([0] * 5 + [1] * 5 + [2])

    assert tau_by_model(truth, said, models) == 0.0
    assert tau_by_model(truth[:5], said[:5], models[:5]) == 1.0


def test_buckets_end_with_their_edges():
    assert buckets_of([0, 50, 51, 200, 201, 1000, 1001]).tolist() == [0, 0, 1, 1, 2, 2, 3]


def test_psi_and_ks_tell_a_shift_from_chance():
    rng = np.random.default_rng(0)
    before, same, moved = rng.normal(size=500), rng.normal(size=300), rng.normal(0.8, size=300)

    assert psi(before, same) < 0.1
    assert psi(before, moved) > 0.25
    assert ks(before, same)[1] > 0.05
    assert ks(before, moved)[1] < 1e-6
    assert ks(before, before) == (0.0, 1.0)
