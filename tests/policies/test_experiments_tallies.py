"""Counts that add up."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from forebay.policies.experiments.tallies import (
    Cell,
    Observation,
    Sketch,
    Tallies,
    Tally,
    bucket_of,
)


def seen(arm: str, rng: Random) -> Observation:
    ok = rng.random() < 0.9
    return Observation(
        arm,
        Cell(rng.choice(["", "fast"]), rng.randrange(4)),
        ttft=rng.lognormvariate(-1, 0.5) if ok else None,
        length=rng.randrange(1, 500) if ok else None,
        errors=not ok,
        empty=rng.random() < 0.1,
        finish_reason=rng.choice(["stop", "length"]),
        output_tokens=3,
    )


def test_a_sketch_knows_quantiles_to_within_two_percent():
    rng, sketch = Random(1), Sketch()
    values = sorted(rng.lognormvariate(0, 1) for _ in range(5000))
    for value in values:
        sketch.add(value)
    for share in (0.5, 0.9, 0.99):
        assert sketch.quantile(share) == pytest.approx(values[int(share * 5000)], rel=0.03)
    assert sketch.mean == pytest.approx(sum(values) / 5000)


def test_the_bounds_of_ranks_hold_the_values_between_them():
    sketch = Sketch()
    for value in (1.0, 2.0, 3.0, 4.0):
        sketch.add(value)
    low, high = sketch.between(2, 3)
    assert 1.9 < low <= 2.0
    assert 3.0 <= high < 3.1
    assert sketch.between(0, 5) == (0.0, float("inf"))


def test_nothing_has_no_quantile():
    assert (Sketch().quantile(0.5), Sketch().mean) == (0.0, 0.0)


def test_what_two_replicas_counted_adds_up_to_what_one_would_have():
    rng = Random(5)
    all_seen = [seen(rng.choice("ab"), rng) for _ in range(2000)]
    one, two, whole = Tallies(), Tallies(), Tallies()
    for number, each in enumerate(all_seen):
        (one if number % 3 else two).add(each)
        whole.add(each)
    one.merge(two)
    for (*name, mine), (*other, theirs) in zip(one.as_rows(), whole.as_rows(), strict=True):
        assert name == other
        assert (mine.requests, mine.errors, mine.finish_reasons) == (
            *(theirs.requests, theirs.errors),
            theirs.finish_reasons,
        )
        assert mine.ttft.buckets == theirs.ttft.buckets
        assert mine.ttft.log_squares == pytest.approx(theirs.ttft.log_squares)


def test_rows_come_back_from_json_as_they_were():
    rng, tallies = Random(9), Tallies()
    for _ in range(200):
        tallies.add(seen("a", rng))
    packed = msgspec.json.encode(tallies.as_rows())
    rows = msgspec.json.decode(packed, type=list[tuple[str, str, int, Tally]])
    assert Tallies.from_rows(rows).as_rows() == tallies.as_rows()


def test_a_failed_request_says_nothing_of_times_and_a_cold_one_of_nothing_but_itself():
    tally = Tally()
    tally.add(Observation("a", Cell(), ttft=1.0, errors=True, good=False))
    tally.add(Observation("a", Cell(), ttft=1.0, cold=True, empty=True))
    tally.add(Observation("a", Cell(), left=True))
    tally.add(Observation("a", Cell(), refused=True))
    counts = (tally.requests, tally.errors, tally.left, tally.refused, tally.answered)
    assert counts == (4, 1, 1, 1, 0)
    assert (tally.ttft.count, tally.empty, tally.promised) == (0, 0, 1)


def test_prompts_are_of_the_bucket_that_holds_them():
    assert [bucket_of(n) for n in (0, 512, 513, 2048, 8192, 8193)] == [0, 0, 1, 1, 2, 3]
