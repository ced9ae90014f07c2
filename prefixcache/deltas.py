"""What replicas tell each other of prefixes, and how a new one begins.

A *delta* says that an endpoint, in one epoch of it, is expected to hold more blocks, or that an
epoch is over. A *snapshot* is all of it at one moment. An epoch is what an endpoint told of its
process (its start time): a delta of another epoch than the one that is known here is dropped, so a
replica that has not yet heard of a restart cannot bring back what the old process held.

Only what is learned goes this way. What engines tell by events, each replica hears itself.
Pure: bytes in, bytes out.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .blocks import BlockHash
    from .index import Index

MOST_WAITING = 50_000
"""Blocks that wait to be told; more are dropped, and the others learn by themselves."""


class Delta(msgspec.Struct, array_like=True, frozen=True):
    """More blocks of one endpoint. Blocks as unsigned 64-bit numbers, little-endian."""

    pool: str
    endpoint: str
    epoch: str
    blocks: bytes
    forget: bool = False
    """The epoch before is over."""
    owner: str = ""
    """The tenant whose they are; empty: nobody's, or a snapshot's."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Delta]).decode


def write(deltas: Sequence[Delta]) -> bytes:
    """Write deltas, or a snapshot."""
    return _encode(deltas)


def read(data: bytes) -> list[Delta]:
    """Read them. Raises ValueError for anything else."""
    try:
        deltas = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"these are no deltas: {type(error).__name__}") from error
    if any(len(delta.blocks) % 8 for delta in deltas):
        raise ValueError("these are no deltas: their blocks are cut short")
    return deltas


class Outbox:
    """What one replica has yet to tell. Bounded."""

    def __init__(self) -> None:
        self.dropped = 0
        """Blocks that were too many."""
        self._waiting: dict[tuple[str, str, str, str], list[int]] = {}
        self._forgotten: list[Delta] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many blocks wait."""
        return self._count

    def add(
        self, pool: str, endpoint: str, epoch: str, blocks: Iterable[int], *, owner: str = ""
    ) -> None:
        """Note blocks that an endpoint is expected to hold from now on."""
        new = list(blocks)
        if self._count + len(new) > MOST_WAITING:
            self.dropped += len(new)
            return
        self._waiting.setdefault((pool, endpoint, epoch, owner), []).extend(new)
        self._count += len(new)

    def forget(self, pool: str, endpoint: str, epoch: str) -> None:
        """Note that an endpoint holds nothing of before; `epoch` is the one that begins."""
        for key in [key for key in self._waiting if key[:2] == (pool, endpoint)]:
            self._count -= len(self._waiting.pop(key))
        self._forgotten.append(Delta(pool, endpoint, epoch, b"", forget=True))

    def take(self) -> list[Delta]:
        """Return all that waits, and begin anew."""
        deltas = [*self._forgotten]
        for (pool, endpoint, epoch, owner), blocks in self._waiting.items():
            packed = array("Q", blocks).tobytes()
            deltas.append(Delta(pool, endpoint, epoch, packed, owner=owner))
        self._waiting, self._forgotten, self._count = {}, [], 0
        return deltas


def blocks_of(delta: Delta) -> array[int]:
    """Return a delta's blocks. Raises ValueError where they are cut short, as `read` does."""
    blocks = array("Q")
    blocks.frombytes(delta.blocks)
    return blocks


def snapshot(pool: str, index: Index, epochs: dict[str, str], *, most: int) -> list[Delta]:
    """Return what is expected of each endpoint, up to `most` blocks of each, last used last."""
    deltas: list[Delta] = []
    for endpoint, epoch in epochs.items():
        blocks = [block for block, _, _ in index.oldest(endpoint, index.held(endpoint))]
        kept: list[BlockHash] = blocks[-most:]
        if kept:
            deltas.append(Delta(pool, endpoint, epoch, array("Q", kept).tobytes()))
    return deltas
