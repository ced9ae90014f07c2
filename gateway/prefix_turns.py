"""Which replica asks an engine for its KV events, and how the others get the answers.

    PREFIX:{prefix}:turn:POOL:ENDPOINT      whose turn it is; ends by itself after `LEASE_S`
    PREFIX:{prefix}:events:POOL:ENDPOINT    its answers, compressed, the newest hundred or so

The events themselves have numbers, so what is lost on the way is found missing. While the store is
away the one that asked goes on, and keeps some answers for the others; where another has begun
meanwhile, both find numbers missing and begin anew.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

LEASE_S = 10.0
RENEW_S = 2.0
AWAY_S = 1.0
"""Between attempts while the store is away."""
KEPT = 128
"""Answers in the stream."""
LONGEST = 512 << 10
"""Compressed bytes of an answer; a longer one is not handed on, and is found missing."""
LONGEST_PLAIN = 64 << 20
MOST_UNSENT = 8 << 20
_AT_ONCE = 16
_TTL_S = 24 * 3600
_GONE = (RedisError, OSError, TimeoutError)
_TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_LEAVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1"


class SharedTurn:
    """One endpoint's turn among replicas."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        entries: Callable[[Any], list[tuple[bytes, dict[bytes, bytes]]]],
        *,
        keys: str,
        endpoint: str,
        replica: str,
    ) -> None:
        """`call` sends a command to the store and `entries` reads what XREAD answers."""
        self._call = call
        self._entries = entries
        self._turn = f"{keys}:turn:{endpoint}"
        self._stream = f"{keys}:events:{endpoint}"
        self._replica = replica.encode()
        self._mine = False
        self._renewed = float("-inf")
        self._away_until = float("-inf")
        self._last = b"0"
        self._unsent: list[bytes] = []

    async def is_mine(self) -> bool:
        """See Turn."""
        now = time.monotonic()
        if now < self._renewed + RENEW_S or now < self._away_until:
            return self._mine
        taken = await self._try("EVAL", _TAKE, 1, self._turn, self._replica, int(LEASE_S * 1000))
        if taken is not None:
            self._mine, self._renewed = taken == 1, now
        return self._mine

    async def hear(self) -> Sequence[bytes]:
        """See Turn."""
        heard: list[bytes] = []
        while time.monotonic() >= self._away_until:
            command = ("XREAD", "COUNT", _AT_ONCE, "STREAMS", self._stream, self._last)
            told = await self._try(*command)
            entries = self._entries(told)
            for number, fields in entries:
                self._last = number
                if fields.get(b"r") != self._replica:
                    heard += await asyncio.to_thread(_unpack, fields.get(b"d", b""))
            if len(entries) < _AT_ONCE:
                break
        return heard

    async def tell(self, answer: bytes) -> None:
        """See Turn."""
        packed = await asyncio.to_thread(zlib.compress, answer, 1)
        if len(packed) <= LONGEST:
            self._unsent.append(packed)
        if sum(map(len, self._unsent)) > MOST_UNSENT:
            self._unsent.clear()
        while self._unsent and time.monotonic() >= self._away_until:
            added = await self._try(
                *("XADD", self._stream, "MAXLEN", "~", KEPT, "*"),
                *("r", self._replica, "d", self._unsent[0]),
            )
            if added is None:
                return
            self._last = added
            self._unsent.pop(0)
            await self._try("EXPIRE", self._stream, _TTL_S)

    async def give_up(self) -> None:
        """See Turn."""
        if self._mine and time.monotonic() >= self._away_until:
            await self._try("EVAL", _LEAVE, 1, self._turn, self._replica)
        self._mine = False

    async def _try(self, *command: object) -> Any:
        """Return the store's answer; None where it is away, and then it is let alone a while."""
        try:
            return await self._call(*command)
        except _GONE:
            self._away_until = time.monotonic() + AWAY_S
            return None


def _unpack(packed: bytes) -> list[bytes]:
    """Return what was packed; nothing for what is no answer."""
    reader = zlib.decompressobj()
    try:
        answer = reader.decompress(packed, LONGEST_PLAIN)
    except zlib.error:
        return []
    return [answer] if reader.eof else []
