"""Who gives way."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from forebay.prefixcache.eviction import EVICTIONS, Hybrid, Learnt, Lfu, Lru, victims
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash
    from forebay.prefixcache.eviction import Aged

OLDEST = cast("list[Aged]", [(1, 100, 9), (2, 90, 1), (3, 80, 2), (4, 10, 1)])
"""Block, age, uses; the oldest first."""


@pytest.mark.parametrize(
    ("policy", "going"), [(Lru(), [1, 2]), (Lfu(), [2, 4]), (Hybrid(), [2, 3]), (Learnt(), [2, 4])]
)
def test_each_policy_gives_up_what_deserves_it_least(policy: Lru | Learnt, going: list[int]):
    assert victims(policy, OLDEST, 2) == going


@pytest.mark.parametrize("name", sorted(EVICTIONS))
def test_each_keeps_within_the_capacity_and_what_was_used_last(name: str):
    index = Index()
    learned = Learned(index, capacity_blocks=64, eviction=EVICTIONS[name]())
    for number in range(100):
        chain = [(number * 8 + n) << 41 for n in range(8)]
        learned.placed("a", cast("list[BlockHash]", chain))
        assert index.match(cast("list[BlockHash]", chain)) == {"a": 8}
    assert (index.held("a"), learned.evicted) == (64, 736)


def test_what_comes_again_and_what_goes_is_learnt_from():
    index, model = Index(), Learnt()
    learned = Learned(index, capacity_blocks=64, eviction=model)
    before = list(model.weights)
    learned.placed("a", cast("list[BlockHash]", [1 << 41, 2 << 41]))
    assert model.weights == before
    learned.placed("a", cast("list[BlockHash]", [1 << 41, 3 << 41]))
    assert model.weights[2] > before[2]


def test_the_model_learns_that_often_used_blocks_come_again():
    model = Learnt(weights=[0.0, 0.0, 0.0])
    for _ in range(200):
        model.learn(50, 20, reused=True)
        model.learn(50, 1, reused=False)
    assert model.keep(50, 20) > 0 > model.keep(50, 1)
