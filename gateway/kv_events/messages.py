"""What the gateway and its event reader say to each other: length-prefixed msgpack over pipes.

Watch      begin to read an endpoint's events; answers carry its `ticket`
Drop       stop
Restarted  the engine is a new process since then; forget what it told before
Answered   what an engine said that has to be asked

Delta      blocks held no more, and from now on; `cleared` comes first
State      how the source does, when that has changed
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 64 << 20
_HEAD = 4


class Watch(msgspec.Struct, tag=True, array_like=True):
    """Begin to read an endpoint's events; without addresses, answers to polls."""

    ticket: int
    addresses: tuple[str, ...]
    bind: bool
    replay: tuple[str, ...]
    topic: str
    block_tokens: int


class Drop(msgspec.Struct, tag=True, array_like=True):
    """Stop reading them."""

    ticket: int


class Restarted(msgspec.Struct, tag=True, array_like=True):
    """The engine's process began at this Unix time."""

    ticket: int
    started: float


class Answered(msgspec.Struct, tag=True, array_like=True):
    """An engine's answer to a poll, as it came."""

    ticket: int
    body: bytes


class Delta(msgspec.Struct, tag=True, array_like=True):
    """Blocks as arrays of unsigned 64-bit numbers, as the machine writes them."""

    ticket: int
    cleared: bool
    removed: bytes
    stored: bytes
    host: bytes = b""
    """Held from now on, but on a tier behind the GPU; the same block is in one of them only."""
    disk: bytes = b""


class State(msgspec.Struct, tag=True, array_like=True):
    """Counts since `Watch`."""

    ticket: int
    batches: int
    events: int
    gaps: int
    restarts: int
    unread: int
    orphans: int
    nodes: int
    error: str = ""


ToReader = Watch | Drop | Restarted | Answered
FromReader = Delta | State
_encode = msgspec.msgpack.Encoder().encode
read_to_reader = msgspec.msgpack.Decoder(ToReader).decode
read_from_reader = msgspec.msgpack.Decoder(FromReader).decode


def write(message: ToReader | FromReader) -> bytes:
    """Return a message as it goes over the pipe."""
    body = _encode(message)
    return len(body).to_bytes(_HEAD, "little") + body


def blocks_of(data: bytes) -> array[int]:
    """Read an array of blocks."""
    blocks = array("Q")
    blocks.frombytes(data)
    return blocks


def bytes_of(blocks: Iterable[int]) -> bytes:
    """Write an array of blocks."""
    return array("Q", blocks).tobytes()
