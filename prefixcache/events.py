"""What engines publish about their caches, read: frames into events, and sequence numbers judged.

vLLM and SGLang send three ZMQ frames: topic, sequence number (8 bytes, big-endian), and a msgpack
batch `[ts, [event, ...], rank]`. An event is a map with a `type`, in older releases an array that
begins with it. Block hashes are unsigned (vLLM), signed (SGLang) or bytes; here they are the same
unsigned 64 bits.

    a batch comes                                      what `Sequence.judge` says
    the next number                                    APPLY
    already applied (replayed before)                  SKIP
    a number that went back, or another batch than     RESTARTED: a new process; forget, then go on
    the one of that number before
    one that went back and is older than the last      STRAY: late, or of a process whose clock
    applied                                            went back; forget, and leave it out
    some are missing                                   GAP: have them replayed, or forget

Pure: no sockets here. Whatever is no such thing raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import msgspec
import xxhash

from .blocks import token_bytes
from .tiers import Tier, tier_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

_MASK = (1 << 64) - 1
_decode = msgspec.msgpack.Decoder().decode
_END = b"\xff" * 8
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
           "lora_name", "extra_keys", "group_idx")  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")
_GROUP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that an engine holds from now on, each the child of the one before it."""

    hashes: tuple[int, ...]
    parent: int | None
    tokens: bytes
    """Four bytes a token; empty where the engine tells a copy of blocks that it told before."""
    block_tokens: int
    adapter: str = ""
    salt: str = ""
    extra: tuple[bytes, ...] = ()
    """What beside its tokens a block depends on (images), for each block; or none at all."""
    tier: Tier = Tier.GPU


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks of which an engine has one copy less."""

    hashes: tuple[int, ...]
    tier: Tier | None = None
    """Where; None where it is not said."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A block's copy lies elsewhere from now on."""

    name: int
    before: Tier
    after: Tier


@dataclass(frozen=True, slots=True)
class Cleared:
    """An engine has emptied its cache."""


Event = Stored | Removed | Moved | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """One message of a publisher."""

    number: int
    events: tuple[Event, ...]
    mark: int
    """A digest, to know it again."""
    at: float = 0.0
    """When it was made, in the publisher's seconds; 0 where it does not say."""
    unread: int = 0
    """Events that could not be read, and were left out."""


def is_end(frames: Many[bytes]) -> bool:
    """Tell whether a replay is over."""
    return len(frames) >= 2 and frames[-2] == _END


def read_frames(frames: Many[bytes]) -> Batch:
    """Read one message: its last two frames. Raises ValueError."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        raise ValueError("no event message: it lacks a sequence number of eight bytes")
    try:
        batch = _decode(frames[-1])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no event message: {type(error).__name__}") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):  # type: ignore[reportUnknownArgumentType]  # any msgpack
        raise ValueError("no event message: it is no [time, events]")
    events, unread = list[Event](), 0
    for item in cast("list[Any]", batch[1]):
        try:
            event = read_event(item)
        except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
            unread += 1
            continue
        if event is not None:
            events.append(event)
    number = int.from_bytes(frames[-2], "big")
    at = float(batch[0]) if isinstance(batch[0], int | float) else 0.0
    return Batch(number, tuple(events), xxhash.xxh3_64_intdigest(frames[-1]), at, unread)


def read_event(item: Any) -> Event | None:
    """Read one event; None for one that says nothing of whole prefixes."""
    fields = cast("dict[str, Any]", item) if isinstance(item, dict) else _named(item)
    kind = fields["type"]
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "BlockRemoved":
        medium = fields.get("medium")
        tier = None if medium is None else _tier(fields)
        return Removed(_hashes(fields["block_hashes"], fields.get("group_idx") or 0), tier)
    return Cleared() if kind == "AllBlocksCleared" else None


def _named(item: Any) -> dict[str, Any]:
    """Give the fields of an array event their names."""
    kind = item[0]
    names = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}.get(kind, ())
    return {"type": kind, **dict(zip(names, item[1:], strict=False))}


def _stored(fields: dict[str, Any]) -> Stored | None:
    if fields.get("kv_cache_spec_sliding_window"):
        return None  # holds the end of a prefix only
    group, size = fields.get("group_idx") or 0, fields["block_size"]
    hashes, tokens = _hashes(fields["block_hashes"], group), fields["token_ids"] or ()
    if type(size) is not int or size < 1 or (tokens and len(tokens) != size * len(hashes)):
        raise ValueError("a stored block of no size")
    if tokens and isinstance(tokens[0], list | tuple):  # pairs, under speculation by EAGLE
        tokens = [pair[0] for pair in tokens]
    parent, adapter = fields.get("parent_block_hash"), fields.get("lora_name") or ""
    salt, extra = _extra(fields.get("extra_keys"), adapter)
    return Stored(
        hashes,
        None if parent is None else _hash(parent, group),
        token_bytes(tokens),
        size,
        adapter,
        fields.get("cache_salt") or salt,
        extra,
        _tier(fields),
    )


def _tier(fields: dict[str, Any]) -> Tier:
    return Tier.DISK if fields.get("locality") == "REMOTE" else tier_of(fields.get("medium"))


def _extra(keys: Any, adapter: str) -> tuple[str, tuple[bytes, ...]]:
    """Return the salt, which is the first block's text that names no adapter, and the rest."""
    if not keys or not any(keys):
        return "", ()
    salt, rest = "", list[bytes]()
    for number, own in enumerate(keys):
        other = [key for key in own or () if key != adapter]
        if number == 0:
            texts = [key for key in other if isinstance(key, str)]
            if texts:
                salt = texts[0]
                other.remove(salt)
        rest.append(repr(other).encode() if other else b"")
    return salt, tuple(rest) if any(rest) else ()


def _hashes(values: Any, group: int) -> tuple[int, ...]:
    if group:
        return tuple(_hash(value, group) for value in values)
    return tuple([v & _MASK if type(v) is int else _hash(v, 0) for v in values])


def _hash(value: int | bytes, group: int) -> int:
    number = int.from_bytes(value[-8:], "big") if isinstance(value, bytes) else value & _MASK
    return number ^ (group * _GROUP & _MASK)


class Verdict(Enum):
    """What is to be done about a batch."""

    APPLY = "apply"
    SKIP = "skip"
    RESTARTED = "restarted"
    STRAY = "stray"
    GAP = "gap"


class Sequence:
    """Follows one publisher's sequence numbers.

    A connection that was lost may have come back from another process which by chance goes on with
    fitting numbers: until the last batch has been seen again (`suspect`), that is a gap, too.
    """

    __slots__ = ("_at", "_live", "_mark", "last", "suspect")

    def __init__(self) -> None:
        self.last = -1
        """Number of the last batch applied; -1 before the first."""
        self._at = 0.0
        self._live = -1
        self._mark = 0
        self.suspect = False

    def judge(self, batch: Batch) -> Verdict:
        """Say what is to be done about a batch that has just come."""
        number, before = batch.number, self._live
        self._live = number
        if number <= before or (number == self.last and batch.mark != self._mark):
            return Verdict.STRAY if batch.at < self._at else Verdict.RESTARTED
        if number <= self.last:
            return Verdict.SKIP
        if number > self.last + 1 or (self.suspect and self.last >= 0):
            return Verdict.GAP
        return Verdict.APPLY

    def is_same(self, batch: Batch) -> bool:
        """Tell whether a replayed batch is the one that was applied last under that number."""
        return batch.number != self.last or batch.mark == self._mark

    def applied(self, batch: Batch) -> None:
        """Note that a batch has been applied."""
        self.last, self._mark, self._at, self.suspect = batch.number, batch.mark, batch.at, False

    def forget(self, *, live: int = -1) -> None:
        """Begin anew: another process. `live`: the number of its batch that has just come."""
        self.last, self._live, self._mark, self._at, self.suspect = -1, live, 0, 0.0, False
