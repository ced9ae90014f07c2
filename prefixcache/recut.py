"""An engine's blocks cut anew into ours.

Engines cut prompts into blocks of 16, 32 or 1 tokens and name them by hashes of their own. Here
each is a *node*: how many copies of it there are (engines keep several of one content), and where
our own chain of hashes stands at its end. A block of ours lies over one or more nodes, its
*members*, and is held while each of them has a copy. Where engines' blocks are larger than ours, it
may lie in several that differ only after it: each is a *way* in which it can be held.

Engine hashes are opaque: they only serve to find what is extended or removed. What continues a node
that was never heard of cannot be placed and is counted (`orphans`): its beginning was missed.

One instance for each publisher. Pure, but not small: some 400 bytes a node, so it lives in the
reader's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from .blocks import root_of_tokens
from .events import Cleared, Removed, Stored

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
        self.ours = 0
        """Our hash of all up to the last border of our blocks in it."""
        self.tail: bytes | None = None
        """Tokens after that border."""
        self.members: tuple[int, ...] = ()
        """Nodes over which those lie."""
        self.ways: int | set[int] = 0
        """Ways of our blocks that lie over it; one alone is itself."""


class Recut:
    """What one publisher's engine holds, in our blocks."""

    def __init__(self, block_tokens: int) -> None:
        self.orphans = 0
        """Blocks whose beginning is not known."""
        self._bytes = 4 * block_tokens
        self._nodes: dict[int, _Node] = {}
        self._ways: dict[int, tuple[int, tuple[int, ...], int]] = {}
        """How many members have no copy, the members, and the block; by the block, mostly."""
        self._held: dict[int, int] = {}
        """Our blocks that are held, and in how many ways."""
        self._roots: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        """Return how many nodes are kept."""
        return len(self._nodes)

    def held(self) -> set[int]:
        """Return our blocks that the engine holds."""
        return set(self._held)

    def apply(self, event: Event, stored: dict[int, None], removed: dict[int, None]) -> bool:
        """Take in an event; add to what is held now and no more. True: all is gone.

        A block is never left in both: the later of the two holds.
        """
        if isinstance(event, Stored):
            self._store(event, stored, removed)
        elif isinstance(event, Removed):
            for key in event.hashes:
                self._remove(key, stored, removed)
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

    def _store(self, event: Stored, stored: dict[int, None], removed: dict[int, None]) -> None:
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
                self._gain(node, stored, removed)
                while len(tail) >= self._bytes:
                    ours = _hash(tail[: self._bytes], ours)
                    tail = tail[self._bytes :]
                    self._close(ours, members, stored, removed)
                    members = (key,) if tail else ()
                node.ours, node.tail, node.members = ours, tail, members
            else:
                self._gain(node, stored, removed)
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

    def _copy(self, event: Stored, stored: dict[int, None], removed: dict[int, None]) -> None:
        """Take in copies (on another tier) of what was told before."""
        for key in event.hashes:
            node = self._nodes.get(key)
            if node is not None and node.tail is not None:
                self._gain(node, stored, removed)
            else:
                self.orphans += 1

    def _gain(self, node: _Node, stored: dict[int, None], removed: dict[int, None]) -> None:
        node.copies += 1
        if node.copies == 1:
            for way in _each(node.ways):
                missing, members, block = self._ways[way]
                self._ways[way] = (missing - 1, members, block)
                if missing == 1:
                    self._hold(block, stored, removed)

    def _hold(self, block: int, stored: dict[int, None], removed: dict[int, None]) -> None:
        before = self._held.get(block, 0)
        self._held[block] = before + 1
        if not before:
            stored[block] = None
            removed.pop(block, None)

    def _close(
        self,
        block: int,
        members: tuple[int, ...],
        stored: dict[int, None],
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
        self._ways[way] = (missing, members, block)
        if not missing:
            self._hold(block, stored, removed)

    # -- removing --------------------------------------------------------------------------------

    def _remove(self, key: int, stored: dict[int, None], removed: dict[int, None]) -> None:
        node = self._nodes.get(key)
        if node is None or not node.copies:
            return
        node.copies -= 1
        if node.copies:
            return
        node.tail = None  # should it come again, the blocks of ours that end in it do, too
        for way in tuple(_each(node.ways)):
            missing, members, block = self._ways[way]
            self._ways[way] = (missing + 1, members, block)
            if not missing:
                self._let_go(block, stored, removed)
            if missing + 1 == len(members):
                self._forget(way, members)
        if not node.ways:
            self._nodes.pop(key, None)

    def _let_go(self, block: int, stored: dict[int, None], removed: dict[int, None]) -> None:
        self._held[block] -= 1
        if not self._held[block]:
            del self._held[block]
            removed[block] = None
            stored.pop(block, None)

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
