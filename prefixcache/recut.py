"""An engine's blocks cut anew into ours.

Engines cut prompts into blocks of 16, 32 or 1 tokens and name them by hashes of their own. Here
each is a *node*: how many copies of it there are (engines keep several of one content), and where
our own chain of hashes stands at its end. A block of ours lies over one or more nodes, its
*members*, and is held while each of them has a copy. Where engines' blocks are larger than ours, it
may lie in several that differ only after it: each is a *way* in which it can be held.

Copies lie on tiers. A way is as slow as its slowest member, a block as fast as its fastest way.

Engine hashes are opaque: they only serve to find what is extended or removed. What continues a node
that was never heard of cannot be placed and is counted (`orphans`): its beginning was missed.

One instance for each publisher. Pure, but not small: some 400 bytes a node, so it lives in the
reader's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from .blocks import root_of_tokens
from .events import Cleared, Moved, Removed, Stored
from .tiers import NOWHERE, ONE, copies_on, lowest

if TYPE_CHECKING:
    from .events import Event

_hash = xxhash.xxh3_64_intdigest
_MASK = (1 << 64) - 1
MOST_NODES = 8_000_000


class _Node:
    """One engine block. Without a `tail` no copy is left, only blocks of ours that lay over it."""

    __slots__ = ("copies", "members", "ours", "tail", "ways")

    def __init__(self) -> None:
        self.copies = 0
        """A tally of them."""
        self.ours = 0
        """Our hash of all up to the last border of our blocks in it."""
        self.tail: bytes | None = None
        """Tokens after that border."""
        self.members: tuple[int, ...] = ()
        """Nodes over which those lie."""
        self.ways: int | set[int] = 0
        """Ways of our blocks that lie over it; one alone is itself."""


_Way = tuple[int, tuple[int, ...], int, int]
"""How many members have no copy, the members, the block, and the tier where none is missing."""


class Recut:
    """What one publisher's engine holds, in our blocks."""

    def __init__(self, block_tokens: int) -> None:
        self.orphans = 0
        """Blocks whose beginning is not known."""
        self._bytes = 4 * block_tokens
        self._nodes: dict[int, _Node] = {}
        self._ways: dict[int, _Way] = {}
        """By the block, mostly."""
        self._held: dict[int, int] = {}
        """Our blocks that are held, with a tally of ways."""
        self._roots: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        """Return how many nodes are kept."""
        return len(self._nodes)

    def held(self) -> dict[int, int]:
        """Return our blocks that the engine holds, and on which tier."""
        return {block: lowest(tally) for block, tally in self._held.items()}

    def apply(self, event: Event, stored: dict[int, int], removed: dict[int, None]) -> bool:
        """Take in an event; add to what is held now (and where) and no more. True: all is gone.

        A block is never left in both: the later of the two holds.
        """
        if isinstance(event, Stored):
            self._store(event, stored, removed)
        elif isinstance(event, Removed):
            for key in event.hashes:
                self._remove(key, event.tier, stored, removed)
        elif isinstance(event, Moved):
            self._move(event, stored, removed)
        else:
            assert isinstance(event, Cleared)
            self.clear()
            return True
        return False

    def clear(self) -> None:
        """Forget everything."""
        self._nodes.clear()
        self._ways.clear()
        self._held.clear()

    # -- storing ---------------------------------------------------------------------------------

    def _store(self, event: Stored, stored: dict[int, int], removed: dict[int, None]) -> None:
        nodes, width = self._nodes, 4 * event.block_tokens
        if not event.tokens:
            return self._copy(event, stored, removed)
        begun = self._begin(event)
        if begun is None:
            self.orphans += len(event.hashes)
            return None
        ours, tail, members = begun
        extra = event.extra
        for number, key in enumerate(event.hashes):
            node = nodes.get(key)
            if node is None:
                if len(nodes) >= MOST_NODES:
                    return None
                node = nodes[key] = _Node()
            if node.tail is None:
                if extra and number < len(extra) and extra[number]:
                    ours = _hash(extra[number], ours)
                tail += event.tokens[number * width : (number + 1) * width]
                members = (*members, key)
                self._gain(node, event.tier, stored, removed)
                while len(tail) >= self._bytes:
                    ours = _hash(tail[: self._bytes], ours)
                    tail = tail[self._bytes :]
                    self._close(ours, members, stored, removed)
                    members = (key,) if tail else ()
                node.ours, node.tail, node.members = ours, tail, members
            else:
                self._gain(node, event.tier, stored, removed)
                ours, tail, members = node.ours, node.tail, node.members
        return None

    def _begin(self, event: Stored) -> tuple[int, bytes, tuple[int, ...]] | None:
        """Return where our chain stands before an event's first block."""
        if event.parent is None:
            named = (event.adapter, event.salt)
            found = self._roots.get(named)
            if found is None:
                if len(self._roots) >= 4096:
                    self._roots.clear()
                made = root_of_tokens(adapter=event.adapter, salt=event.salt)
                found = self._roots[named] = made
            return found, b"", ()
        node = self._nodes.get(event.parent)
        return None if node is None or node.tail is None else (node.ours, node.tail, node.members)

    def _copy(self, event: Stored, stored: dict[int, int], removed: dict[int, None]) -> None:
        """Take in copies (on another tier) of what was told before."""
        for key in event.hashes:
            node = self._nodes.get(key)
            if node is not None and node.tail is not None:
                self._gain(node, event.tier, stored, removed)
            else:
                self.orphans += 1

    def _gain(
        self, node: _Node, tier: int, stored: dict[int, int], removed: dict[int, None]
    ) -> None:
        before = node.copies
        node.copies = before + ONE[tier]
        if before:
            if node.ways and tier < lowest(before):
                self._shift(node, stored, removed)
            return
        for way in _each(node.ways):
            missing, members, block, _ = self._ways[way]
            now = NOWHERE if missing > 1 else self._slowest(members)
            self._ways[way] = (missing - 1, members, block, now)
            if missing == 1:
                self._change(block, ONE[now], stored, removed)

    def _shift(self, node: _Node, stored: dict[int, int], removed: dict[int, None]) -> None:
        """Take in that a node is read from another tier than before."""
        for way in _each(node.ways):
            missing, members, block, tier = self._ways[way]
            now = tier if missing else self._slowest(members)
            if now != tier:
                self._ways[way] = (missing, members, block, now)
                self._change(block, ONE[now] - ONE[tier], stored, removed)

    def _slowest(self, members: tuple[int, ...]) -> int:
        nodes = self._nodes
        return max(lowest(nodes[key].copies) for key in members)

    def _change(
        self, block: int, by: int, stored: dict[int, int], removed: dict[int, None]
    ) -> None:
        """Count ways in which a block is held, and tell where that changes something."""
        before = self._held.get(block, 0)
        after = before + by
        if after:
            self._held[block] = after
        else:
            del self._held[block]
        tier = lowest(after)
        if tier == NOWHERE:
            removed[block] = None
            stored.pop(block, None)
        elif tier != lowest(before):
            stored[block] = tier
            removed.pop(block, None)

    def _close(
        self,
        block: int,
        members: tuple[int, ...],
        stored: dict[int, int],
        removed: dict[int, None],
    ) -> None:
        """Note a block of ours that is whole now."""
        way = block
        while (known := self._ways.get(way)) is not None:
            if known[1] == members:
                return
            way = (way * 3 + 1) & _MASK
        missing = 0
        for key in members:
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = _Node()
            missing += not node.copies
            node.ways = _with(node.ways, way)
        tier = NOWHERE if missing else self._slowest(members)
        self._ways[way] = (missing, members, block, tier)
        if not missing:
            self._change(block, ONE[tier], stored, removed)

    # -- removing --------------------------------------------------------------------------------

    def _remove(
        self, key: int, tier: int | None, stored: dict[int, int], removed: dict[int, None]
    ) -> None:
        node = self._nodes.get(key)
        if node is None or not node.copies:
            return
        before = lowest(node.copies)
        if tier is None:
            tier = before
        elif not copies_on(node.copies, tier):
            return
        node.copies -= ONE[tier]
        if not node.copies:
            self._lose(key, node, stored, removed)
        elif node.ways and lowest(node.copies) != before:
            self._shift(node, stored, removed)

    def _move(self, event: Moved, stored: dict[int, int], removed: dict[int, None]) -> None:
        node = self._nodes.get(event.name)
        if node is None or not copies_on(node.copies, event.before):
            return
        self._gain(node, event.after, stored, removed)
        self._remove(event.name, event.before, stored, removed)

    def _lose(
        self, key: int, node: _Node, stored: dict[int, int], removed: dict[int, None]
    ) -> None:
        """Take in that no copy of a node is left."""
        node.tail = None  # should it come again, the blocks of ours that end in it do, too
        for way in tuple(_each(node.ways)):
            missing, members, block, tier = self._ways[way]
            self._ways[way] = (missing + 1, members, block, NOWHERE)
            if not missing:
                self._change(block, -ONE[tier], stored, removed)
            if missing + 1 == len(members):
                self._forget(way, members)
        if not node.ways:
            self._nodes.pop(key, None)

    def _forget(self, way: int, members: tuple[int, ...]) -> None:
        """Forget a way in which nothing of a block is left."""
        del self._ways[way]
        for key in members:
            node = self._nodes[key]
            node.ways = _without(node.ways, way)
            if not node.ways and not node.copies:
                del self._nodes[key]


def _each(ways: int | set[int]) -> tuple[int, ...] | set[int]:
    if isinstance(ways, int):
        return (ways,) if ways else ()
    return ways


def _with(ways: int | set[int], way: int) -> int | set[int]:
    if isinstance(ways, set):
        ways.add(way)
        return ways
    return {ways, way} if ways else way


def _without(ways: int | set[int], way: int) -> int | set[int]:
    if isinstance(ways, set):
        ways.discard(way)
        return ways
    return 0 if ways == way else ways
