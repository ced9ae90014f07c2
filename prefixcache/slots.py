"""What one endpoint holds by one source of knowledge: its own blocks, in the order of their use.

Expected blocks are kept in the order of their last use, each with how often it was used; who gives
way is for `eviction` to say. What an engine tells of has its tier in that place. Along a chain
tiers only become slower, since engines move the ends of prefixes away first, so two bisections say
how much of a hit lies where.

Blocks are cut into shards by middle bits of their hashes, so that no dict is ever so large that its
growing could be felt.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import islice
from math import sqrt
from operator import itemgetter
from typing import TYPE_CHECKING

from .tiers import NOWHERE, WORTH, Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .blocks import BlockHash

SLOT_SHARDS = 16
SLOT_SHARD = SLOT_SHARDS - 1
"""Of a block's hash, shifted by 48 bits: which of a slot's shards it is in."""
MOST_COUNTED = 255
"""Uses of a block are counted up to this."""
COUNT_BITS = 8
_FEW = 16 * SLOT_SHARDS
_MANY = 16 * SLOT_SHARDS
"""Of the oldest blocks: shards differ by a fifth or so in how many of these they have."""


class Source(IntEnum):
    """How it is known that an endpoint holds a block."""

    EXACT = 0
    """The engine said so."""
    EXPECTED = 1
    """It was sent there."""


class Slot:
    """The blocks of one endpoint by one source."""

    __slots__ = ("bit", "blocks", "endpoint", "far", "held", "source")

    def __init__(self, endpoint: str, source: Source, bit: int) -> None:
        self.endpoint = endpoint
        self.source = source
        self.bit = bit
        self.blocks: list[dict[int, int]] = [{} for _ in range(SLOT_SHARDS)]
        """Expected: hash to (last use << 8 | uses), the least recently used first. Exact: hash to
        tier."""
        self.held = 0
        self.far = False
        """Some were on another tier than the GPU."""

    def depth(self, chain: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of the chain it has."""
        own, low, high = self.blocks, 0, len(chain)
        if not high or chain[0] not in own[chain[0] >> 48 & SLOT_SHARD]:
            return 0
        while low < high:
            middle = (low + high) // 2
            block = chain[middle]
            if block in own[block >> 48 & SLOT_SHARD]:
                low = middle + 1
            else:
                high = middle
        return low

    def worth(self, chain: Sequence[BlockHash], low: int, high: int) -> float:
        """Return what blocks low to high of a chain are worth, by their tiers."""
        near = self._reach(chain, low, high, Tier.GPU)
        if near == high:
            return high - low
        middle = self._reach(chain, near, high, Tier.HOST)
        return near - low + WORTH[1] * (middle - near) + WORTH[2] * (high - middle)

    def used(self, block: BlockHash) -> int:
        """Return an expected block's last use and its uses, in one number; 0 where it has none."""
        return self.blocks[block >> 48 & SLOT_SHARD].get(block, 0)

    def unused_since(self, clock: int, most: int) -> list[BlockHash]:
        """Return up to `most` expected blocks that were last used before a moment."""
        old: list[int] = []
        for own in self.blocks:
            for block, used in own.items():
                if used >> COUNT_BITS >= clock or len(old) >= most:
                    break
                old.append(block)
        return old  # type: ignore[return-value]  # what was stored

    def used_since(self, clock: int) -> list[BlockHash]:
        """Return the expected blocks that were used after a moment, in that order."""
        found: list[tuple[int, int]] = []
        for own in self.blocks:
            for block, used in reversed(own.items()):
                if used >> COUNT_BITS <= clock:
                    break
                found.append((used, block))
        return [block for _, block in sorted(found)]  # type: ignore[misc]  # what was stored

    def oldest(self, count: int) -> list[tuple[int, int]]:
        """Return the least recently used expected blocks with what is known of their use.

        Of fewer than all, a handful may be the wrong ones: each shard is looked at only as far as
        it should be needed. Where they are many, as many are taken of each, in no order.
        """
        far = self._far(count)
        found = [item for own in self.blocks for item in islice(own.items(), far)]
        if count < _MANY or count >= self.held:
            found.sort(key=itemgetter(1))
            del found[count:]
        return found

    def first_used(self) -> int | None:
        """Return when the least recently used expected block was used; None without any.

        Of one shard's blocks where there are many: to look at all takes 30 us an endpoint.
        """
        if not self.held:
            return None
        few = self.held < _FEW or not self.blocks[0]
        shards = self.blocks if few else self.blocks[:1]
        return min(next(iter(own.values())) for own in shards if own) >> COUNT_BITS

    def _reach(self, chain: Sequence[BlockHash], low: int, high: int, tier: int) -> int:
        """Return how far from `low` on, up to `high`, blocks lie on a tier or a nearer one."""
        own, middle = self.blocks, high - 1  # where nothing ends before it, one look is enough
        while low < high:
            block = chain[middle]
            if own[block >> 48 & SLOT_SHARD].get(block, NOWHERE) <= tier:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) >> 1
        return low

    def _far(self, count: int) -> int:
        """Return how far to look in each shard for so many of the oldest blocks."""
        if count >= self.held:
            return self.held
        if count >= _MANY:
            return count // SLOT_SHARDS
        each = count / SLOT_SHARDS
        return max(SLOT_SHARDS, int(each + 3.0 * sqrt(each)))
