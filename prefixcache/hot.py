"""Which prefixes many prompts begin with, and what is kept of them to have them prefilled again.

A prompt's hit says how much of it has been seen before: that much it has in common with another. So
the end of a hit is where prompts part, and a prefix at which many have parted is a *hot* one: a
system prompt, its tools, a document that everybody asks about. A conversation that goes on parts at
another place with each turn, and none of these is hot.

Counts fade, so what was hot yesterday gives way. What is kept of a hot prefix (its text, for
whoever warms caches) is only asked for once it is hot: what came once is never kept. Pure: `now`
comes in, content is any value, and it stands in no repr.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .blocks import BlockHash

T = TypeVar("T")

LEAST_BLOCKS = 2
"""Shorter prefixes are not worth a prefill."""
FADE_S = 1800.0
MOST_COUNTED = 4096
"""Ends of hits whose counts are remembered."""


@dataclass(frozen=True, slots=True)
class HotPrefix(Generic[T]):
    """One prefix, and what is kept of it."""

    chain: tuple[BlockHash, ...]
    content: T = field(repr=False)
    size: int
    """Bytes of the content."""


class HotPrefixes(Generic[T]):
    """The hot prefixes of one pool. Bounded in number and in bytes."""

    def __init__(self, *, most: int, most_bytes: int, uses: int, fade_s: float = FADE_S) -> None:
        """Take how many prompts (`uses`) must have parted at a prefix's end for it to be hot."""
        self._most = most
        self._most_bytes = most_bytes
        self._uses = uses
        self._fade_s = fade_s
        self._counts: dict[BlockHash, tuple[float, float]] = {}
        """By a prefix's last block: faded count, and when it was counted. The last used last."""
        self._kept: dict[BlockHash, HotPrefix[T]] = {}
        self._bytes = 0
        self._bar = (0.0, 0.0)
        """What the last that gave way was worth, and when: less is not asked for."""

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    @property
    def size(self) -> int:
        """Return how many bytes are kept."""
        return self._bytes

    def met(self, chain: Sequence[BlockHash], hit: int, now: float) -> bool:
        """Count a prompt that has its first `hit` blocks in common with others.

        True when that beginning is hot and its content is not kept yet.
        """
        if hit < LEAST_BLOCKS:
            return False
        end = chain[hit - 1]
        count = self._count(end, now) + 1.0
        self._counts.pop(end, None)
        if len(self._counts) >= MOST_COUNTED:
            del self._counts[next(iter(self._counts))]
        self._counts[end] = (count, now)
        if count <= self._uses - 0.5 or end in self._kept:  # it has faded a little
            return False
        bar, at = self._bar
        return count * hit > bar * exp((at - now) / self._fade_s)

    def keep(self, chain: tuple[BlockHash, ...], content: T, size: int, now: float) -> None:
        """Keep the content of a hot prefix; what is worth least gives way."""
        end = chain[-1]
        if end in self._kept:
            return
        if size > self._most_bytes:
            self.decline(chain)
            return
        self._kept[end] = HotPrefix(chain, content, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            least = min(self._kept, key=lambda each: self._worth(each, now))
            self._bar = (self._worth(least, now), now)
            self._bytes -= self._kept.pop(least).size

    def clear(self) -> None:
        """Keep nothing any more."""
        self._counts.clear()
        self._kept.clear()
        self._bytes, self._bar = 0, (0.0, 0.0)

    def decline(self, chain: Sequence[BlockHash]) -> None:
        """Say that nothing can be kept of a prefix: it is asked for again only when hot anew."""
        self._counts.pop(chain[-1], None)

    def hottest(self, now: float) -> list[HotPrefix[T]]:
        """Return what is kept, those first whose prefill saves most: blocks by faded uses.

        Of those that lie in another one only the longest is there: its prefill is theirs, too.
        """
        ranked = sorted(self._kept, key=lambda each: self._worth(each, now), reverse=True)
        inner = {block for end in ranked for block in self._kept[end].chain[:-1]}
        return [self._kept[end] for end in ranked if end not in inner]

    def _worth(self, end: BlockHash, now: float) -> float:
        return self._count(end, now) * len(self._kept[end].chain)

    def _count(self, end: BlockHash, now: float) -> float:
        count, at = self._counts.get(end, (0.0, now))
        return count * exp((at - now) / self._fade_s) if count else 0.0
