"""Expectations from placements, and their correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import (
    CLEARED_AFTER,
    GROW_BLOCKS,
    HOPE_S,
    LEAST_BLOCKS,
    Learned,
)

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash


def chain(*numbers: int) -> list[BlockHash]:
    """Return blocks that are spread as hashes are."""
    spread = [(number + 1) * 0x9E37_79B9_7F4A_7C15 % (1 << 64) for number in numbers]
    return cast("list[BlockHash]", spread)


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
    learned.reported("a", predicted_tokens=640, cached_tokens=64)
    assert (learned.capacity("a"), index.held("a"), learned.ghosts) == (180, 180, 1)


def test_it_never_shrinks_below_the_least():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(*range(10)))
    for _ in range(50):
        learned.reported("a", predicted_tokens=640, cached_tokens=1)
    assert learned.capacity("a") == LEAST_BLOCKS


def test_at_the_least_half_goes_at_once_so_that_not_every_prompt_searches():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    for number in range(20):
        learned.placed("a", chain(*range(100 * number, 100 * number + 10)))
        learned.reported("a", predicted_tokens=640, cached_tokens=1)
    held = list[int]()
    for number in range(8):
        learned.placed("a", chain(number, 5000 + number))
        held.append(index.held("a"))
    assert learned.capacity("a") == LEAST_BLOCKS
    assert index.match(chain(7, 5007)) == {"a": 2}
    assert LEAST_BLOCKS // 2 <= min(held) <= max(held) <= LEAST_BLOCKS


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


def test_a_hope_that_no_answer_confirms_fades():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(*range(10)), request="r", now=0.0)
    assert (index.match(chain(*range(10))), learned.sure("a", chain(*range(10)), 10)) == (
        {"a": 10},
        0,
    )
    learned.tick(HOPE_S - 0.1, ["a"])
    assert index.match(chain(*range(10))) == {"a": 10}
    learned.tick(HOPE_S, ["a"])
    assert index.match(chain(*range(10))) == {}


def test_a_first_byte_makes_a_hope_an_expectation_even_a_late_one():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    for late, request in ((False, "r"), (True, "s")):
        learned.placed("a", chain(*range(10)), request=request, now=0.0)
        learned.tick(HOPE_S + 1 if late else 0.0, ["a"])
        learned.began(request, "a", chain(*range(10)))
        assert learned.sure("a", chain(*range(10)), index.match(chain(0, 1))["a"]) == 2
        learned.ended(request)
    assert index.match(chain(*range(10))) == {"a": 10}


def test_a_request_that_failed_leaves_what_others_hope_for():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(1, 2, 3), request="r", now=0.0)
    learned.placed("a", chain(1, 2, 4), request="s", now=0.0)
    learned.ended("s")
    assert index.match(chain(1, 2, 3)) == {"a": 3}
    learned.ended("r")
    assert index.match(chain(1, 2, 3)) == {}


def test_several_hits_in_a_row_of_which_nothing_was_there_mean_another_cache():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(*range(200)))
    for _ in range(CLEARED_AFTER):
        learned.reported("a", predicted_tokens=640, cached_tokens=0)
    assert (index.match(chain(*range(200))), learned.emptied) == ({}, 1)
    assert learned.capacity("a") > LEAST_BLOCKS


def test_short_hits_prove_nothing():
    learned = Learned(Index(), capacity_blocks=1000)
    learned.reported("a", predicted_tokens=100, cached_tokens=0)
    assert learned.ghosts == 0


def test_what_was_not_used_for_long_is_forgotten():
    index = Index()
    learned = Learned(index, capacity_blocks=1000, ttl_s=60.0)
    learned.tick(0.0, ["a"])
    learned.placed("a", chain(*range(10)))
    for second in range(1, 120):
        learned.placed("a", chain(0, 1))
        learned.tick(float(second), ["a"])
    assert index.match(chain(*range(10))) == {"a": 2}


def test_no_more_is_expected_than_the_engines_cache_holds():
    index = Index()
    learned = Learned(index, capacity_blocks=1000)
    learned.placed("a", chain(*range(200)))
    learned.limit("a", 100)
    assert (learned.capacity("a"), index.held("a")) == (100, 100)
    learned.limit("a", 5000)
    assert learned.capacity("a") == 1000


def test_what_is_used_is_told_to_other_replicas_where_blocks_give_way():
    learned, told = Learned(Index(), capacity_blocks=64), list[list[int]]()
    learned.share = lambda _, blocks, __: told.append(list(blocks))
    learned.placed("a", chain(*range(50)))
    learned.answered("a", chain(1, 2, 3))
    assert told == []
    learned.placed("a", chain(*range(60)))
    learned.answered("a", chain(1, 2, 3))
    assert told == [chain(3, 2, 1)]


def test_what_another_replica_tells_is_counted_where_it_is_new():
    learned = Learned(Index(), capacity_blocks=64)
    assert learned.heard("a", chain(1, 2, 3)) == 3
    assert learned.heard("a", chain(3, 4)) == 1
    learned.told.add("a")
    assert learned.heard("a", chain(5)) == 0
