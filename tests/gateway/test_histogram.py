"""Histograms of plain numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.telemetry import histogram
from forebay.gateway.telemetry.histogram import Histogram, HistogramCopy

ALL_BOUNDS = [value for name, value in vars(histogram).items() if name.endswith("_BOUNDS")]


def test_a_value_on_a_bound_belongs_below_it():
    h = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        h.observe(value)
    assert h.copy() == HistogramCopy((1.0, 2.0), (2, 2, 1), 7.5)
    assert h.copy().count == 5


def test_events_of_one_chunk_are_one_gap_and_zeros():
    h = Histogram((0.001, 1.0))
    h.observe(0.5, 4)
    assert h.copy() == HistogramCopy((0.001, 1.0), (3, 1, 0), 0.5)


def test_a_copy_stays_as_it_was():
    h = Histogram((1.0,))
    before = h.copy()
    h.observe(0.5)
    assert before == HistogramCopy((1.0,), (0, 0), 0.0)


@given(st.lists(st.floats(0, 1e4), max_size=50))
def test_each_bucket_holds_what_lies_between_its_bounds(values: list[float]):
    bounds = (0.001, 0.1, 5.0, 600.0)
    h = Histogram(bounds)
    for value in values:
        h.observe(value)
    edges = (-1.0, *bounds, float("inf"))
    naive = [sum(low < v <= high for v in values) for low, high in pairwise(edges)]
    assert h.copy().counts == tuple(naive)


@pytest.mark.parametrize("bounds", ALL_BOUNDS)
def test_bounds_rise(bounds: tuple[float, ...]):
    assert list(bounds) == sorted(set(bounds))


def test_first_tokens_are_told_apart_from_a_millisecond_to_ten_minutes():
    for bounds in (histogram.TTFT_BOUNDS, histogram.TPOT_BOUNDS):
        assert (bounds[0], bounds[-1]) == (0.001, 600.0)


def test_the_usual_targets_are_bounds():
    assert {0.5, 0.8, 1.5} <= set(histogram.TTFT_BOUNDS)
    assert {0.03, 0.05, 0.08, 0.15} <= set(histogram.TPOT_BOUNDS)
