"""What TensorRT-LLM tells of its cache when it is asked, read: a JSON list of events into ours.

Each item is `{"event_id", "data": {"type", ...}, "window_size", "attention_dp_rank",
"layer_group_id"}`; numbers rise by one from 0 for each rank. An answer takes what it tells out of
the engine's buffer, which drops the oldest when it is full and replays nothing, so a missing number
means that everything is doubtful.

    created     the engine has begun: it holds nothing
    stored      a chain of blocks, each with its tokens and its cache level (0 GPU, 1 host)
    removed     blocks that are gone
    updated     a block that moved to another level

Where several attention windows are told of, only the greatest keeps whole prefixes. Neither salts
nor adapters are told. Read in the 1.2 line and in late 2026's main; not run.
Pure: no HTTP here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from .blocks import token_bytes
from .events import Cleared, Moved, Removed, Stored, Verdict
from .tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .events import Event

_MASK = (1 << 64) - 1
_GROUP = 0x9E3779B97F4A7C15

Name = int | str
"""Of a block: a number of 64 bits, or hexadecimal digits."""


class _Token(msgspec.Struct, gc=False):
    token_id: int
    token_extra_id: int = 0


class _Block(msgspec.Struct, gc=False):
    block_hash: Name
    tokens: list[_Token]
    cache_level: int = 0
    mm_keys: msgspec.Raw = msgspec.Raw(b"[]")


class _Levels(msgspec.Struct, gc=False):
    old_value: int
    new_value: int


class _Data(msgspec.Struct, gc=False):
    type: str
    parent_hash: Name | None = None
    blocks: list[_Block] = []
    block_hashes: list[Name] = []
    block_hash: Name = 0
    cache_level: _Levels | None = None


class _Item(msgspec.Struct, gc=False):
    event_id: int
    data: _Data
    window_size: int = 0
    attention_dp_rank: int | None = None
    layer_group_id: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """One item of an answer."""

    number: int
    rank: int
    window: int
    """Tokens that an attention layer looks back at."""
    events: tuple[Event, ...]


_read = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_item = msgspec.json.Decoder(_Item).decode


def read_answer(body: bytes) -> tuple[list[Told], int]:
    """Return an answer's items, and how many could not be read. Raises ValueError for no list."""
    try:
        raw = _read(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no answer with events: {type(error).__name__}") from error
    told, unread = list[Told](), 0
    for each in raw:
        try:
            item = _read_item(each)
            events = tuple(_events(item))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            unread += 1
            continue
        rank = item.attention_dp_rank or 0
        told.append(Told(item.event_id, rank, item.window_size, events))
    return told, unread


def _events(item: _Item) -> Iterator[Event]:
    data, group = item.data, item.layer_group_id or 0
    if data.type == "stored":
        yield from _stored(data, group)
    elif data.type == "removed":
        yield Removed(tuple(_hash(name, group) for name in data.block_hashes))
    elif data.type == "updated" and data.cache_level is not None:
        levels = data.cache_level
        yield Moved(_hash(data.block_hash, group), _tier(levels.old_value), _tier(levels.new_value))
    elif data.type == "created":
        yield Cleared()


def _stored(data: _Data, group: int) -> Iterator[Stored]:
    """Cut a chain where its blocks' levels or sizes change: a prompt's last block is shorter."""
    parent = None if data.parent_hash is None else _hash(data.parent_hash, group)
    for (level, size), blocks in groupby(data.blocks, lambda b: (b.cache_level, len(b.tokens))):
        if not size:
            raise ValueError("a stored block without tokens")
        run = list(blocks)
        names = tuple(_hash(block.block_hash, group) for block in run)
        tokens = token_bytes(token.token_id for block in run for token in block.tokens)
        extra = tuple(map(_extra, run))
        told = extra if any(extra) else ()
        yield Stored(names, parent, tokens, size, extra=told, tier=_tier(level))
        parent = names[-1]


def _extra(block: _Block) -> bytes:
    """Return what beside its tokens a block depends on."""
    ids = [token.token_extra_id for token in block.tokens]
    keys = bytes(block.mm_keys)
    if keys in (b"null", b"[]") and not any(ids):
        return b""
    return repr(ids).encode() + keys


def _tier(level: int) -> Tier:
    if level < 0:
        raise ValueError("a cache level below zero")
    return Tier(min(level, Tier.DISK))


def _hash(name: Name, group: int) -> int:
    number = int(name[-16:], 16) if isinstance(name, str) else name
    return (number ^ (group * _GROUP)) & _MASK


class Numbers:
    """Follows one rank's event numbers."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -1
        """Of the last event that came; -1 before the first."""

    def judge(self, number: int) -> Verdict:
        """Say what an event's number means for those before it: APPLY, RESTARTED or GAP."""
        before, self.last = self.last, number
        if number <= before:
            return Verdict.RESTARTED
        return Verdict.GAP if before >= 0 and number > before + 1 else Verdict.APPLY

    def forget(self) -> None:
        """Begin anew: another process."""
        self.last = -1
