"""Expectations from placements, and their correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import GROW_BLOCKS, LEAST_BLOCKS, Learned

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash


def chain(*numbers: int) -> list[BlockHash]:
    return cast("list[BlockHash]", list(numbers))


def test_what_was_sent_to_an_endpoint_is_expected_there():
    index = Index()
    Learned(index, capacity_blocks=100).placed("a", chain(1, 2, 3))
    assert index.match(chain(1, 2, 3, 4)) == {"a": 3}


def test_past_its_capacity_the_ends_of_old_prompts_go_first():
    index = Index()
    learned = Learned(index, capacity_blocks=5)
    learned.placed("a", chain(1, 2, 3))
    learned.placed("a", chain(1, 8, 9))
    learned.placed("a", chain(1, 8, 10))
    assert index.held("a") == 5
    assert index.match(chain(1, 8, 10)) == {"a": 3}
    assert index.match(chain(1, 2, 3)) == {"a": 2}


def test_a_hit_that_did_not_happen_shrinks_what_is_expected():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(*range(200)))
    learned.reported("a", predicted_tokens=640, cached_tokens=0)
    assert (learned.capacity("a"), index.held("a"), learned.ghosts) == (180, 180, 1)


def test_it_never_shrinks_below_the_least():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(*range(10)))
    for _ in range(50):
        learned.reported("a", predicted_tokens=64, cached_tokens=0)
    assert learned.capacity("a") == LEAST_BLOCKS


def test_a_hit_that_happened_lets_it_grow_again():
    learned = Learned(Index(), capacity_blocks=1000)
    learned.placed("a", chain(*range(200)))
    learned.reported("a", predicted_tokens=640, cached_tokens=0)
    learned.reported("a", predicted_tokens=640, cached_tokens=600)
    assert (learned.capacity("a"), learned.confirmed) == (180 + GROW_BLOCKS, 1)


def test_where_nothing_was_predicted_nothing_is_learnt():
    learned = Learned(Index(), capacity_blocks=1000)
    learned.reported("a", predicted_tokens=0, cached_tokens=0)
    assert (learned.ghosts, learned.confirmed) == (0, 0)


def test_a_restarted_endpoint_is_expected_to_hold_nothing():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(1, 2))
    learned.placed("b", chain(1))
    assert learned.forget("a") == 2
    assert index.match(chain(1, 2)) == {"b": 1}
