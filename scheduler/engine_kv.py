"""KV blocks of one modelled engine: ref-counted, with a prefix cache over chained block hashes.

A block is *free*, *plain* (in use, content not shared), *held* (cached and in use) or *idle*
(cached, in use by nobody, evicted when blocks run out: longest idle first, and the tail of a
sequence before its head). Plain blocks are only counted; a cached one has an id. Two sequences
that compute the same block at once leave two copies of one hash, each evicted by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def chain_hashes(
    tokens: Sequence[int], block_tokens: int, *, salt: str = "", parent: int | None = None
) -> list[int]:
    """Hash each full block of `tokens` over its parent, its tokens and, in the first, the salt.

    64 bits, the same in each process. `parent` continues a chain (the salt is then in it already).
    About 1 us a block.
    """
    size = 4 * block_tokens
    data = pack(f"<{len(tokens)}I", *tokens)
    last = salt.encode("utf-8", "surrogatepass") if parent is None else parent.to_bytes(8, "big")
    hashes: list[int] = []
    for start in range(0, len(data) - size + 1, size):
        last = blake2b(data[start : start + size], digest_size=8, key=last[:64]).digest()
        hashes.append(int.from_bytes(last, "big"))
    return hashes


class KVBlocks:
    """The blocks of one engine. Counts and ids only: who holds which is the caller's business."""

    __slots__ = (
        "_copies",
        "_first",
        "_hash",
        "_idle",
        "_on_evict",
        "_refs",
        "_spare",
        "free",
        "total",
    )

    def __init__(self, total: int, on_evict: Callable[[int], None] | None = None) -> None:
        self.total = total
        self.free = total
        self._refs: list[int] = []
        self._hash: list[int] = []
        self._spare: list[int] = []
        self._first: dict[int, int] = {}
        self._copies: dict[int, list[int]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict

    @property
    def available(self) -> int:
        """Blocks that can be taken, evicting idle ones."""
        return self.free + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks in use: plain or held."""
        return self.total - self.free - len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks with a hash, copies counted: held or idle."""
        return len(self._hash) - len(self._spare)

    def take(self, count: int) -> None:
        """Take plain blocks; the caller has looked at `available`."""
        self.free -= count
        while self.free < 0:
            self._evict()

    def give(self, count: int) -> None:
        """Give plain blocks back."""
        self.free += count

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Find the cached blocks that lead `hashes`, at most `limit`; none is held yet."""
        first = self._first
        found: list[int] = []
        for index in range(min(limit, len(hashes))):
            block = first.get(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: list[int]) -> int:
        """Count those that nobody holds: holding them makes them unavailable."""
        refs = self._refs
        return sum(1 for block in blocks if not refs[block])

    def hold(self, blocks: list[int]) -> None:
        """Count one more user of each of these cached blocks."""
        refs = self._refs
        for block in blocks:
            if not refs[block]:
                del self._idle[block]
            refs[block] += 1

    def store(self, block_hash: int) -> int:
        """Turn one plain block of the caller into a cached one that it holds; return its id."""
        if self._spare:
            block = self._spare.pop()
            self._refs[block] = 1
            self._hash[block] = block_hash
        else:
            block = len(self._hash)
            self._refs.append(1)
            self._hash.append(block_hash)
        if self._first.setdefault(block_hash, block) != block:
            self._copies.setdefault(block_hash, []).append(block)
        return block

    def release(self, blocks: list[int]) -> None:
        """Count one user less of each; the last ones given are evicted first."""
        refs, idle = self._refs, self._idle
        for block in reversed(blocks):
            refs[block] -= 1
            if not refs[block]:
                idle[block] = None

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        block_hash = self._hash[block]
        self._forget(block, block_hash)
        self._spare.append(block)
        self.free += 1
        if self._on_evict is not None:
            self._on_evict(block_hash)

    def _forget(self, block: int, block_hash: int) -> None:
        copies = self._copies.get(block_hash)
        if copies is None:
            del self._first[block_hash]
            return
        if self._first[block_hash] == block:
            self._first[block_hash] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[block_hash]
