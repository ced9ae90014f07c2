"""The index against a naive model: sets of endpoints in a dict."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.prefixcache.index import Index
from forebay.prefixcache.slots import Source
from forebay.prefixcache.tiers import WORTH, Tier

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash

ENDPOINTS = ("a", "b", "c")
STEP = st.tuples(
    st.sampled_from(("store", "remove", "clear")),
    st.sampled_from(ENDPOINTS),
    st.lists(st.integers(0, 20), max_size=8),
)


def chain(numbers: list[int]) -> list[BlockHash]:
    return cast("list[BlockHash]", numbers)


@settings(deadline=None)
@given(st.lists(STEP, max_size=40))
def test_any_interleaving_leaves_what_a_dict_of_sets_would(steps: list[tuple[str, str, list[int]]]):
    index, naive = Index(), {endpoint: dict[int, None]() for endpoint in ENDPOINTS}
    for kind, endpoint, numbers in steps:
        own = naive[endpoint]
        if kind == "store":
            index.store(endpoint, chain(numbers))
            for number in numbers:
                own.pop(number, None)
                own[number] = None
        elif kind == "remove":
            held = len(own)
            for number in numbers:
                own.pop(number, None)
            assert index.remove(endpoint, chain(numbers)) == held - len(own)
        else:
            assert index.clear(endpoint) == len(own)
            own.clear()
    for number in range(21):
        holders = tuple(e for e in ENDPOINTS if number in naive[e])
        assert index.holders(cast("BlockHash", number)) == holders
    for size in (1, 5, 21):
        asked = chain(list(range(size)))
        for endpoint, length in index.match(asked).items():
            held = [number in naive[endpoint] for number in range(size)]
            leading = held.index(False) if False in held else size
            assert leading <= length <= size - held[::-1].index(True)
    assert index.sweep(10**6) == 0
    assert len(index) == len({number for own in naive.values() for number in own})
    kept = {e: [block for block, _, _ in index.oldest(e, 999)] for e in ENDPOINTS}
    assert kept == {e: [*naive[e]] for e in ENDPOINTS}


@settings(deadline=None)
@given(st.integers(1, 300), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 300)))
def test_a_lookup_finds_how_far_each_endpoint_holds_the_chain(size: int, depths: dict[str, int]):
    index, blocks = Index(), chain(list(range(1000, 1000 + size)))
    for endpoint, depth in depths.items():
        index.store(endpoint, blocks[:depth])
    expected = {e: min(d, size) for e, d in depths.items() if d}
    assert index.match(blocks) == expected


def test_a_long_lookup_asks_for_few_blocks():
    class Counting(dict[int, int]):
        asked = 0

        def get(self, key: int, default: int = 0) -> int:  # type: ignore[override] - as used here
            Counting.asked += 1
            return super().get(key, default)

    index, blocks = Index(), chain(list(range(4096)))
    index.store("a", blocks)
    index.store("b", blocks[:1000])
    index._shards = [Counting(shard) for shard in index._shards]
    assert index.match(blocks) == {"a": 4096, "b": 1000}
    assert Counting.asked < 100


def test_a_prompt_that_is_looked_up_again_is_told_of_every_change_between():
    index, blocks = Index(), tuple(chain(list(range(10))))
    found = [dict(index.match(blocks))]
    changes = (
        lambda: index.store("a", blocks[:4]),
        lambda: index.hold("b", blocks[:6]),
        lambda: index.remove("a", blocks[2:]),
        lambda: index.clear("b"),
        lambda: index.store("a", blocks),
    )
    for change in changes:
        change()
        found.append(dict(index.match(blocks)))
        assert index.match(blocks) == found[-1]
    expected = [{}, {"a": 4}, {"a": 4, "b": 6}, {"a": 2, "b": 6}, {"a": 2}, {"a": 10}]
    assert found == expected
    assert index.longest(blocks) == 10


def test_of_many_blocks_those_that_were_not_used_for_long_are_the_oldest():
    index, rng = Index(), random.Random(1)
    blocks = chain([rng.getrandbits(64) for _ in range(10_000)])
    index.store("a", blocks)
    going = {block for block, _, _ in index.oldest("a", 400)}
    assert len(going) == 400
    assert len(going & set(blocks[:600])) >= 390
    index.store("a", blocks[:600])
    assert not {block for block, _, _ in index.oldest("a", 400)} & set(blocks[:600])


def test_two_sources_of_one_endpoint_are_looked_up_as_one_and_forgotten_apart():
    index, blocks = Index(), chain(list(range(10)))
    index.hold("a", blocks[:4])
    index.store("a", blocks)
    assert index.match(blocks) == {"a": 10}
    depths = [index.depth("a", blocks, source) for source in Source]
    assert depths == [4, 10]
    assert index.clear("a", Source.EXPECTED) == 10
    assert index.match(blocks) == {"a": 4}
    assert index.holders(blocks[5]) == ()


def test_what_was_forgotten_is_not_found_though_it_is_yet_to_be_swept():
    index, blocks = Index(), chain(list(range(1000)))
    index.store("a", blocks)
    index.store("b", blocks[:500])
    assert index.clear("a") == 1000
    assert index.match(blocks) == {"b": 500}
    index.store("a", blocks[:10])
    assert index.match(blocks) == {"a": 10, "b": 500}
    assert index.sweep(400) == 600
    assert index.match(blocks) == {"a": 10, "b": 500}
    assert index.sweep(4000) == 0
    assert (index.match(blocks), len(index)) == ({"a": 10, "b": 500}, 500)


def test_a_block_that_comes_back_behind_a_gap_is_no_part_of_the_hit():
    index, blocks = Index(), chain(list(range(8)))
    index.store("a", [*blocks[:3], *blocks[4:]])
    index.store("b", blocks)
    assert index.match(blocks)["b"] == 8
    assert index.match(blocks[:5])["a"] in (3, 5)


def test_blocks_not_used_since_a_moment_expire():
    index, blocks = Index(), chain(list(range(10)))
    index.store("a", blocks)
    then = index.clock
    index.store("a", blocks[:3])
    assert index.expire("a", then + 1, 100) == 7
    assert index.match(blocks) == {"a": 3}


def test_thousands_of_different_sets_of_holders_leave_nothing_behind():
    index, rng = Index(), random.Random(1)
    for _ in range(3):
        for endpoint in range(200):
            index.store(f"e{endpoint}", chain(rng.sample(range(2000), 100)))
        for endpoint in range(200):
            index.clear(f"e{endpoint}")
        assert index.sweep(10**6) == 0
    assert (len(index), index._next) == (0, 200)


@pytest.mark.parametrize("blocks", [[], [7]])
def test_nothing_is_found_where_nothing_is_held(blocks: list[int]):
    assert Index().match(chain(blocks)) == {}


def test_a_full_index_has_nothing_for_the_garbage_collector():
    import gc

    index, rng = Index(), random.Random(1)
    gc.collect()
    before = len(gc.get_objects())
    index.store("a", chain([rng.getrandbits(64) for _ in range(50_000)]))
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_blocks_behind_the_gpu_are_worth_less():
    index, blocks = Index(), chain(list(range(1, 11)))
    index.hold("near", blocks)
    index.hold("far", blocks[:2])
    index.hold("far", blocks[2:6], Tier.HOST)
    index.hold("far", blocks[6:9], Tier.DISK)
    assert index.match(blocks) == {"near": 10, "far": 9}
    assert index.worth(blocks) == {"near": 10, "far": pytest.approx(2 + 0.8 * 4 + 0.5 * 3)}
    index.store("far", blocks[:7])  # fetched for a prompt that went there
    assert index.worth(blocks)["far"] == pytest.approx(7 + 0.5 * 2)
    index.hold("far", blocks[2:6], Tier.GPU)
    index.clear("far", Source.EXPECTED)
    assert index.worth(blocks)["far"] == pytest.approx(6 + 0.5 * 3)


@given(st.lists(st.sampled_from(Tier), max_size=40), st.integers(0, 40))
def test_the_worth_of_a_hit_is_that_of_its_blocks(tiers: list[Tier], expected: int):
    index, blocks = Index(), chain(list(range(1, 41)))
    tiers = sorted(tiers)
    for block, tier in zip(blocks, tiers, strict=False):
        index.hold("a", [block], tier)
    index.store("a", blocks[:expected])
    by_hand = expected + sum(WORTH[tier] for tier in tiers[expected:])
    assert index.worth(blocks).get("a", 0) == pytest.approx(by_hand)
    assert index.match(blocks).get("a", 0) == max(expected, len(tiers))
