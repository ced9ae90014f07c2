"""Who holds which block: one table per pool, looked up along a prompt's chain.

Theory of operation. A *slot* is an endpoint by one source of knowledge (`Source`); it has a bit.
The table maps a block's hash to the set of its slots, an integer of such bits. Python's garbage
collector does not track a dict of integers, so a full table adds nothing to its pauses; the table
and each slot's own blocks are cut into shards, so that none is ever large enough for its growing to
be felt (a dict of ten million takes a second for that).

A prefix cache holds a block only while it holds the one before it, or soon loses it, so along a
chain the holders only become fewer. Where two positions have the same holders, all between have
them, too: a lookup gallops and bisects instead of walking, in O(changes x log length). An index
that was told otherwise (a removal out of order) answers with too long a hit at worst, never with
too short a one. A prompt is looked up several times on its way: when it is read, when it is placed,
and then to note what is predicted. The last answer is kept until something changes.

Forgetting all of an endpoint takes its bits out of use at once, whatever it held: that is what
fences a restarted engine's blocks. The bits are cleared out of the table little by little (`sweep`)
and only then used again.

What each slot holds, and in what order it was used, is for `slots` to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .slots import COUNT_BITS, MOST_COUNTED, SLOT_SHARD, Slot, Source
from .tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .blocks import BlockHash

SHARDS = 256
_CACHED_SETS = 4096
_SHARD = SHARDS - 1  # by middle bits of a hash: a dict places its keys by their lowest


class Index:
    """Blocks and their holders. Not thread-safe: it lives on one loop."""

    __slots__ = (
        "_asked",
        "_clock",
        "_dead",
        "_expected",
        "_far",
        "_found",
        "_free",
        "_live",
        "_masks",
        "_names",
        "_next",
        "_shards",
        "_told",
    )

    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._told: dict[str, Slot] = {}
        """By endpoint, what its engine said."""
        self._expected: dict[str, Slot] = {}
        """By endpoint, what was sent there."""
        self._live: dict[int, Slot] = {}
        self._dead: list[Slot] = []
        self._free: list[int] = []
        self._next = 0
        self._clock = 0
        self._masks: dict[int, int] = {}
        self._names: dict[int, tuple[tuple[str, Source], ...]] = {}
        self._far = False
        self._asked: Sequence[BlockHash] | None = None
        """The chain that was looked up last, unless something has changed since."""
        self._found: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many distinct blocks are held somewhere, those to be swept included."""
        return sum(map(len, self._shards))

    def held(self, endpoint: str, source: Source = Source.EXPECTED) -> int:
        """Return how many blocks an endpoint holds by one source."""
        slot = self._of(source).get(endpoint)
        return 0 if slot is None else slot.held

    def holders(self, block: BlockHash) -> tuple[str, ...]:
        """Return who holds one block, sorted."""
        found = self._holders_of(self._shards[block >> 40 & _SHARD].get(block, 0))
        return tuple(sorted({endpoint for endpoint, _ in found}))

    def unknown(self, blocks: Iterable[BlockHash]) -> int:
        """Return how many of some blocks nobody holds."""
        count = 0
        for block in blocks:
            if block not in self._shards[block >> 40 & _SHARD]:
                count += 1
        return count

    def hold(self, endpoint: str, blocks: Iterable[BlockHash], tier: Tier = Tier.GPU) -> None:
        """Note that an endpoint says that it holds blocks, and on which tier."""
        slot = self._told.get(endpoint)
        if slot is None:
            slot = self._open(endpoint, Source.EXACT)
        shards, own, bit, canonical = self._shards, slot.blocks, slot.bit, self._canonical
        value, new = int(tier), 0
        self._asked = None
        if value:
            slot.far = self._far = True
        for block in blocks:
            middle = block >> 40
            mine = own[middle >> 8 & SLOT_SHARD]
            if block not in mine:
                new += 1
                shard = shards[middle & _SHARD]
                shard[block] = canonical(shard.get(block, 0) | bit)
            mine[block] = value
        slot.held += new

    def store(self, endpoint: str, blocks: Iterable[BlockHash]) -> list[BlockHash]:
        """Expect an endpoint to hold blocks, used just now; return those that are new to it."""
        slot = self._expected.get(endpoint)
        if slot is None:
            slot = self._open(endpoint, Source.EXPECTED)
        shards, own, bit, canonical = self._shards, slot.blocks, slot.bit, self._canonical
        clock, before, after = self._clock, -1, 0
        new: list[BlockHash] = []
        for block in blocks:
            clock += 1
            middle = block >> 40
            mine = own[middle >> 8 & SLOT_SHARD]
            used = mine.get(block, 0)
            if used:
                del mine[block]  # to the end of the order
                mine[block] = clock << COUNT_BITS | min(MOST_COUNTED, (used & MOST_COUNTED) + 1)
            else:
                new.append(block)
                shard = shards[middle & _SHARD]
                held = shard.get(block, 0)
                if held != before:  # neighbours mostly have the same holders
                    before, after = held, canonical(held | bit)
                shard[block] = after
                mine[block] = clock << COUNT_BITS | 1
        self._clock = clock
        if new:
            slot.held += len(new)
            self._asked = None
        return new

    def remove(
        self, endpoint: str, blocks: Iterable[BlockHash], source: Source = Source.EXPECTED
    ) -> int:
        """Note that an endpoint no longer holds blocks; return how many it did hold."""
        slot = self._of(source).get(endpoint)
        if slot is None:
            return 0
        self._asked = None
        own, removed = slot.blocks, 0
        for block in blocks:
            mine = own[block >> 48 & SLOT_SHARD]
            if block in mine:  # compiled, half of pop
                del mine[block]
                self._drop(slot.bit, block)
                removed += 1
        slot.held -= removed
        return removed

    def clear(self, endpoint: str, source: Source | None = None) -> int:
        """Forget all that an endpoint holds, at once; return how much it was.

        By all sources, or only by one. What it held is swept out of the table later.
        """
        forgotten = 0
        self._asked = None
        for each in Source if source is None else (source,):
            slot = self._of(each).pop(endpoint, None)
            if slot is not None:
                del self._live[slot.bit]
                self._dead.append(slot)
                self._names.clear()
                forgotten += slot.held
        return forgotten

    def sweep(self, most: int) -> int:
        """Take up to `most` forgotten blocks out of the table; return how many are left."""
        while self._dead and most > 0:
            slot = self._dead[-1]
            for own in slot.blocks:
                count = min(most, len(own))
                for _ in range(count):
                    self._drop(slot.bit, own.popitem()[0])
                slot.held -= count
                most -= count
            if not slot.held:
                self._dead.pop()
                self._free.append(slot.bit)
        return sum(slot.held for slot in self._dead)

    @property
    def clock(self) -> int:
        """How many uses of blocks there have been."""
        return self._clock

    def expire(self, endpoint: str, clock: int, most: int) -> int:
        """Forget up to `most` expected blocks that were last used before a moment of `clock`."""
        slot = self._expected.get(endpoint)
        return 0 if slot is None else self.remove(endpoint, slot.unused_since(clock, most))

    def recent(self, endpoint: str, clock: int) -> list[BlockHash]:
        """Return an endpoint's expected blocks that were used since a moment of `clock`."""
        slot = self._expected.get(endpoint)
        return [] if slot is None else slot.used_since(clock)

    def used(self, endpoint: str, block: BlockHash) -> tuple[int, int] | None:
        """Return an expected block's age, in uses of any block, and its uses."""
        slot = self._expected.get(endpoint)
        found = 0 if slot is None else slot.used(block)
        return (self._clock - (found >> COUNT_BITS), found & MOST_COUNTED) if found else None

    def oldest(self, endpoint: str, count: int) -> list[tuple[BlockHash, int, int]]:
        """Return the least recently used expected blocks: hash, age in uses of any block, uses.

        See `Slot.oldest` for how true that is.
        """
        slot = self._expected.get(endpoint)
        if slot is None or count <= 0:
            return []
        clock, found = self._clock, slot.oldest(count)
        return [(b, clock - (used >> COUNT_BITS), used & MOST_COUNTED) for b, used in found]  # type: ignore[misc]  # what was stored

    def first_used(self, endpoint: str) -> int | None:
        """Return the moment of `clock` when the least recently used expected block was used."""
        slot = self._expected.get(endpoint)
        return None if slot is None else slot.first_used()

    # -- looking up ------------------------------------------------------------------------------

    def match(self, chain: Sequence[BlockHash]) -> Mapping[str, int]:
        """Return how many leading blocks of the chain each endpoint holds, by any source."""
        if chain is self._asked and isinstance(chain, tuple):  # a list may be another by now
            return self._found
        hits: dict[str, int] = {}
        position, size = 0, len(chain)
        current = self._mask(chain[0]) if size else 0
        while current:
            position = self._reach(chain, position, current)
            for endpoint, _ in self._holders_of(current):
                hits[endpoint] = position
            if position == size:
                break
            current &= self._mask(chain[position])  # who lost one block lost the rest
        self._asked, self._found = chain, hits
        return hits

    def longest(self, chain: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of the chain are held at the best place for it."""
        best = 0
        for length in self.match(chain).values():
            best = max(best, length)
        return best

    def worth(self, chain: Sequence[BlockHash]) -> Mapping[str, float]:
        """Return `match`, with blocks that are not on the GPU counted for less."""
        hits = self.match(chain)
        if not self._far or not hits:
            return hits
        worth: dict[str, float] = dict(hits)
        for endpoint, length in hits.items():
            slot = self._told.get(endpoint)
            if slot is not None and slot.far:
                near = self.depth(endpoint, chain, Source.EXPECTED)
                if near < length:
                    worth[endpoint] = near + slot.worth(chain, near, length)
        return worth

    def depth(self, endpoint: str, chain: Sequence[BlockHash], source: Source) -> int:
        """Return how many leading blocks of the chain an endpoint holds by one source."""
        slot = self._of(source).get(endpoint)
        return 0 if slot is None else slot.depth(chain)

    def _reach(self, chain: Sequence[BlockHash], low: int, current: int) -> int:
        """Return how far all of `current`, who hold chain[low], hold the chain."""
        size, step = len(chain), 1
        while low + step < size and self._mask(chain[low + step]) & current == current:
            low += step
            step *= 2
        high = min(low + step, size)
        while high - low > 1:
            middle = (low + high) // 2
            if self._mask(chain[middle]) & current == current:
                low = middle
            else:
                high = middle
        return high

    def _mask(self, block: BlockHash) -> int:
        return self._shards[block >> 40 & _SHARD].get(block, 0)

    # -- slots -----------------------------------------------------------------------------------

    def _of(self, source: Source) -> dict[str, Slot]:
        return self._told if source is Source.EXACT else self._expected

    def _open(self, endpoint: str, source: Source) -> Slot:
        if self._free:
            bit = self._free.pop()
        else:
            bit = 1 << self._next
            self._next += 1
        slot = self._of(source)[endpoint] = self._live[bit] = Slot(endpoint, source, bit)
        self._names.clear()
        return slot

    def _drop(self, bit: int, block: int) -> None:
        shard = self._shards[block >> 40 & _SHARD]
        left = shard[block] & ~bit
        if left:
            shard[block] = self._canonical(left)
        else:
            del shard[block]

    def _canonical(self, mask: int) -> int:
        """Return one object for equal sets: a table of a million blocks has few different ones."""
        found = self._masks.get(mask)
        if found is None:
            if len(self._masks) >= _CACHED_SETS:
                self._masks.clear()
            found = self._masks[mask] = mask
        return found

    def _holders_of(self, mask: int) -> tuple[tuple[str, Source], ...]:
        found = self._names.get(mask)
        if found is None:
            if len(self._names) >= _CACHED_SETS:
                self._names.clear()
            found = self._names[mask] = tuple(self._expand(mask))
        return found

    def _expand(self, mask: int) -> Iterator[tuple[str, Source]]:
        while mask:
            bit = mask & -mask
            slot = self._live.get(bit)
            if slot is not None:
                yield slot.endpoint, slot.source
            mask ^= bit
