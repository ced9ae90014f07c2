"""Engines' blocks cut anew, against a naive model that looks at whole prefixes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.prefixcache.blocks import chain_tokens, root_of_tokens, token_bytes
from forebay.prefixcache.events import Cleared, Moved, Removed, Stored
from forebay.prefixcache.recut import Recut
from forebay.prefixcache.tiers import Tier

Tokens = tuple[int, ...]


class Engine:
    """A cache of blocks of `size` tokens, each named by the tokens up to its end."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.copies: dict[Tokens, list[Tier]] = {}

    def store(self, prompt: Tokens, first: int, tier: Tier = Tier.GPU) -> Stored | None:
        """Store a prompt's whole blocks from the one numbered `first` on."""
        size = self.size
        prefixes = [prompt[:end] for end in range(size, len(prompt) + 1, size)]
        first = min(first, len(prefixes))
        while first and not self.copies.get(prefixes[first - 1]):
            first -= 1  # what is extended must be there
        new = prefixes[first:]
        if not new:
            return None
        for prefix in new:
            self.copies.setdefault(prefix, []).append(tier)
        parent = name(prefixes[first - 1]) if first else None
        tokens = token_bytes(prompt[first * size : len(prefixes) * size])
        return Stored(tuple(map(name, new)), parent, tokens, size, tier=tier)

    def remove(self, number: int, *, told: bool = True) -> Removed | None:
        held = [prefix for prefix, copies in self.copies.items() if copies]
        if not held:
            return None
        prefix = held[number % len(held)]
        copies = self.copies[prefix]
        tier = copies.pop(number % len(copies)) if told else min(copies)
        if not told:
            copies.remove(tier)
        return Removed((name(prefix),), tier if told else None)

    def move(self, number: int, tier: Tier) -> Moved | None:
        held = [prefix for prefix, copies in self.copies.items() if copies]
        if not held:
            return None
        prefix = held[number % len(held)]
        before = self.copies[prefix].pop()
        self.copies[prefix].append(tier)
        return Moved(name(prefix), before, tier)

    def held(self, prompts: list[Tokens], block: int) -> dict[int, int]:
        """Return our blocks all of whose tokens lie in engine blocks that are there, and where."""
        found: dict[int, int] = {}
        for prompt in prompts:
            whole = len(prompt) // block
            hashes = chain_tokens(root_of_tokens(), token_bytes(prompt), block_tokens=block)[:whole]
            for number, value in enumerate(hashes):
                first = number * block // self.size
                last = -(-(number + 1) * block // self.size)
                ends = [(n + 1) * self.size for n in range(first, last)]
                if all(e <= len(prompt) and self.copies.get(prompt[:e]) for e in ends):
                    slowest = max(min(self.copies[prompt[:e]]) for e in ends)
                    found[value] = min(slowest, found.get(value, slowest))
        return found


def name(prefix: Tokens) -> int:
    return hash(prefix) & ((1 << 64) - 1)


TREE = [
    (*range(20),),
    (*range(9), *range(50, 61)),
    (*range(9), *range(70, 79)),
    (*range(3), *range(90, 99)),
]
STEP = st.tuples(
    st.sampled_from(["store", "store", "remove", "drop", "move", "clear"]), st.integers(0, 90)
)


@settings(max_examples=300)
@given(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([2, 4, 5, 8]), st.lists(STEP, max_size=40))
def test_a_block_is_held_while_all_engine_blocks_under_it_are(
    size: int, block: int, steps: list[tuple[str, int]]
):
    engine, recut = Engine(size), Recut(block)
    told: dict[int, int] = {}
    for kind, number in steps:
        stored: dict[int, int] = {}
        removed: dict[int, None] = {}
        tier = Tier(number // 30 % 3)
        if kind == "clear" and number < 75:
            continue
        if kind == "store":
            event = engine.store(TREE[number % 4], number % 30 // 4, tier)
        elif kind in ("remove", "drop"):
            event = engine.remove(number, told=kind == "remove")
        elif kind == "move":
            event = engine.move(number, tier)
        else:
            engine.copies.clear()
            event = Cleared()
        if event is None:
            continue
        if recut.apply(event, stored, removed):
            told.clear()
        assert not stored.keys() & removed.keys()
        told = {b: tier for b, tier in told.items() if b not in removed} | stored
        assert told == recut.held() == engine.held(TREE, block)
    assert recut.orphans == 0


def test_what_is_gone_leaves_nothing_behind():
    engine, recut = Engine(2), Recut(4)
    for prompt in TREE:
        event = engine.store(prompt, 99)
        assert event is not None
        recut.apply(event, {}, {})
    while (event := engine.remove(0)) is not None:
        recut.apply(event, {}, {})
    assert (len(recut), recut.held()) == (0, {})


def test_what_continues_something_never_heard_of_is_counted_only():
    recut, stored = Recut(2), dict[int, int]()
    recut.apply(Stored((8, 9), 7, token_bytes([1, 2, 3, 4]), 2), stored, {})
    assert (stored, recut.orphans, len(recut)) == ({}, 2, 0)
    recut.apply(Removed((8, 9)), stored, {})


def test_copies_on_another_tier_hold_a_block_longer():
    recut, removed = Recut(2), dict[int, None]()
    recut.apply(Stored((1,), None, token_bytes([1, 2]), 2), {}, removed)
    recut.apply(Stored((1,), None, b"", 2), {}, removed)
    recut.apply(Removed((1,)), {}, removed)
    assert not removed
    recut.apply(Removed((1,)), {}, removed)
    assert removed.keys() == set(
        chain_tokens(root_of_tokens(), token_bytes([1, 2]), block_tokens=2)
    )


@pytest.mark.parametrize(("adapter", "salt"), [("", "s"), ("a", ""), ("a", "s")])
def test_adapters_and_salts_have_blocks_of_their_own(adapter: str, salt: str):
    recut, stored = Recut(2), dict[int, int]()
    recut.apply(Stored((1,), None, token_bytes([1, 2]), 2, adapter, salt), stored, {})
    parent = root_of_tokens(adapter=adapter, salt=salt)
    assert list(stored) == chain_tokens(parent, token_bytes([1, 2]), block_tokens=2)


def test_an_image_makes_another_block_of_the_same_tokens():
    held: list[set[int]] = []
    for extra in ((), (b"one",), (b"two",)):
        recut = Recut(2)
        recut.apply(Stored((1,), None, token_bytes([1, 2]), 2, "", "", extra), {}, {})
        held.append(set(recut.held()))
    assert all(one.isdisjoint(other) for one, other in pairwise([*held, held[0]]))
