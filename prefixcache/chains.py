"""Hashes a text that begins as an earlier one did without hashing its beginning block by block.

A conversation's turn brings all of what was said before. So texts are also looked at in *spans* of
64 blocks: one hash of a span, seeded with the block before it, says whether its blocks were hashed
before, in a tenth of the time that they take. What is found there are the same hashes: this only
saves time.

Only texts of two spans or more are looked at so (32 KB, with blocks of 64 tokens). Of one whose
first span was never seen, only that is noted, for half a microsecond: prompts that never come again
leave nothing else behind. When it comes a second time the rest is remembered, too.

Two generations are kept, and the older one is dropped whole when the younger has half of the bytes:
what was found moves up, so nothing is ordered at each use.

Weakness: two spans that differ and have one hash of 64 bits have the names of one of them. As with
blocks, all that this can do is send a request to the wrong endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from .blocks import chain_text

if TYPE_CHECKING:
    from .blocks import BlockHash

SPAN = 64
"""Blocks."""
MOST_BYTES = 16 << 20
_PER_BLOCK = 44
"""Bytes: an integer of 64 bits, and its place in a tuple."""
_PER_SPAN = 200
_SEEN: tuple[BlockHash, ...] = ()
"""Stands for a span that came once."""

_hash = xxhash.xxh3_64_intdigest


class Chains:
    """Hashes the texts of one pool, as `chain_text` does."""

    def __init__(self, *, block_bytes: int, span: int = SPAN, most_bytes: int = MOST_BYTES) -> None:
        """Take how long blocks are, and how much may be remembered."""
        self._block_bytes = block_bytes
        self._size = span * block_bytes
        self._most = most_bytes // 2
        self._young: dict[int, tuple[BlockHash, ...]] = {}
        self._old: dict[int, tuple[BlockHash, ...]] = {}
        self._bytes = self._old_bytes = 0

    @property
    def held_bytes(self) -> int:
        """How much memory it needs, as estimated."""
        return self._bytes + self._old_bytes

    def hashes(self, parent: BlockHash, text: bytes) -> list[BlockHash]:
        """Return what `chain_text` would."""
        size, end = self._size, len(text)
        if end < 2 * size:
            return chain_text(parent, text, block_bytes=self._block_bytes)
        hashes: list[BlockHash] = []
        view, value, at = memoryview(text), parent, 0
        while at + size <= end:
            key = _hash(view[at : at + size], int(value))
            found = self._find(key)
            if found is None and not at:
                self._keep(key, _SEEN)
                break
            if not found:
                found = tuple(
                    chain_text(value, view[at : at + size], block_bytes=self._block_bytes)
                )
                self._keep(key, found)
            hashes += found
            value = found[-1]
            at += size
        hashes += chain_text(value, view[at:], block_bytes=self._block_bytes)
        return hashes

    def _find(self, key: int) -> tuple[BlockHash, ...] | None:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._keep(key, found)
        return found

    def _keep(self, key: int, span: tuple[BlockHash, ...]) -> None:
        if self._bytes >= self._most:
            self._old, self._young = self._young, {}
            self._old_bytes, self._bytes = self._bytes, 0
        self._young[key] = span
        self._bytes += _PER_SPAN + _PER_BLOCK * len(span)
