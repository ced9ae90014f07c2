"""The last step of a placement."""

from __future__ import annotations

from collections import Counter
from random import Random

from forebay.policies.contracts import EndpointView
from forebay.policies.pick import Seeded

VIEWS = [EndpointView(name, "vllm", 4) for name in "abcd"]


def test_the_best_is_taken_and_the_random_source_left_alone():
    rng = Random(1)
    before = rng.getstate()

    assert Seeded()(VIEWS, [0.1, 0.9, 0.2, 0.3], rng) == 1
    assert rng.getstate() == before


def test_ties_are_spread_evenly_over_the_best():
    rng = Random(1)

    counts = Counter(Seeded()(VIEWS, [0.9, 0.1, 0.9, 0.9], rng) for _ in range(3000))

    assert set(counts) == {0, 2, 3}
    assert min(counts.values()) > 900


def test_the_same_seed_picks_the_same():
    def run(seed: int) -> list[int]:
        rng = Random(seed)
        return [Seeded()(VIEWS, [1.0] * 4, rng) for _ in range(20)]

    assert run(1) == run(1)
    assert run(1) != run(2)
