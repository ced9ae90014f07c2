"""Replicas tell each other where prefixes went, through a Redis stream and a snapshot.

    PREFIX:{prefix}:stream     deltas of all replicas, the newest thousand
    PREFIX:{prefix}:snapshot   [stream id, deltas of all], written by one replica now and then

A new replica takes the snapshot and reads the stream from there, so it is warm within a second; so
is the only one after a restart. Nothing here is on a request's path: where Redis is away or frozen,
each replica goes on with what it learns by itself, says so, and catches up afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from forebay.prefixcache.deltas import Outbox, read, snapshot, write

from .prefix_turns import SharedTurn
from .quota.redis_store import connect, patiently
from .store_task import GONE, StoreTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.prefixcache.deltas import Delta

    from .pools import Pool
    from .prefix import PoolPrefix

logger = logging.getLogger(__name__)

TIMEOUT_S = 0.5
EVERY_S = 0.1
SNAPSHOT_S = 30.0
KEPT = 1000
"""Entries of the stream."""
MOST_BLOCKS = 50_000
"""Of an endpoint, in a snapshot."""
_AT_ONCE = 200
_SNAPSHOT_TTL_S = 24 * 3600
_ID = re.compile(rb"\d{1,20}(-\d{1,20})?")
"""Of an entry of the stream: milliseconds by the store's clock, and a number."""


class Sharing:
    """Keeps one replica's expectations and the others' together."""

    def __init__(
        self,
        url: str,
        pools: Callable[[], Iterable[Pool]],
        *,
        prefix: str = "forebay",
        every_s: float = EVERY_S,
        snapshot_s: float = SNAPSHOT_S,
    ) -> None:
        self.outbox = Outbox()
        self.heard = 0
        """Deltas of others."""
        self._pools = pools
        self._client: Any = connect(url, TIMEOUT_S)
        self._keys = f"{prefix}:{{prefix}}"
        self._stream = f"{self._keys}:stream"
        self._snapshot = f"{self._keys}:snapshot"
        self._every_s = every_s
        self._snapshot_s = snapshot_s
        self._replica = uuid4().hex
        self._last: bytes | None = None
        self._unsent: bytes | None = None
        self._snapshot_due = 0.0
        self._task = StoreTask(
            self._turn,
            lost="prefixes are not shared: the store is away",
            back="prefixes are shared again",
        )

    @property
    def away(self) -> bool:
        """Redis does not answer: nothing is told or heard."""
        return self._task.away

    @property
    def times_away(self) -> int:
        """How often it went away."""
        return self._task.times_away

    def start(self) -> None:
        """Begin."""
        self._snapshot_due = asyncio.get_running_loop().time() + self._snapshot_s
        self._task.start()

    def turn(self, pool: str, endpoint: str) -> SharedTurn:
        """Return an endpoint's turn, where one replica asks for its events for all."""
        return SharedTurn(
            self._call,
            _entries,
            keys=self._keys,
            endpoint=f"{pool}:{endpoint}",
            replica=self._replica,
        )

    def attend(self) -> None:
        """Have pools that are new, or look at prefixes anew, tell what they learn."""
        for pool in self._pools():
            if pool.prefix is not None:
                pool.prefix.share(self.outbox)

    async def close(self) -> None:
        """Tell what is left, write a snapshot, and end."""
        await self._task.stop()
        if not self.away:
            try:
                await self._tell()
                await self._write_snapshot()
            except GONE:
                logger.warning("prefixes could not be handed to other replicas")
        await self._client.aclose()

    async def _turn(self) -> float:
        """Tell and hear, and now and then write a snapshot; return the pause until the next."""
        loop = asyncio.get_running_loop()
        if self._last is None:
            await self._catch_up()
        elif self.away:
            await self._look_again(self._last)
        await self._tell()
        await self._hear()
        if loop.time() >= self._snapshot_due:
            self._snapshot_due = loop.time() + self._snapshot_s
            await self._write_snapshot()
        return self._every_s

    async def _call(self, *command: object) -> Any:
        return await patiently(self._client.execute_command(*command), TIMEOUT_S)

    async def _tell(self) -> None:
        if self._unsent is None:
            deltas = self.outbox.take()
            if not deltas:
                return
            self._unsent = write(deltas)
        await self._call(
            *("XADD", self._stream, "MAXLEN", "~", KEPT, "*"), "r", self._replica, "d", self._unsent
        )
        self._unsent = None

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            answer = await self._call(
                *("XREAD", "COUNT", _AT_ONCE, "STREAMS", self._stream, self._last or b"0")
            )
            entries = _entries(answer)
            for entry, fields in entries:
                self._last = entry
                if fields.get(b"r") != self._replica.encode():
                    self._apply(fields.get(b"d", b""), loop.time())
                await asyncio.sleep(0)
            if len(entries) < _AT_ONCE:
                return

    async def _catch_up(self) -> None:
        """Take the snapshot, or the stream from its beginning where there is none."""
        found = await self._call("GET", self._snapshot)
        self._last = b"0"
        if isinstance(found, bytes):
            at, _, deltas = found.partition(b"\n")
            if _ID.fullmatch(at):
                self._last = at
            self._apply(deltas)

    async def _look_again(self, last: bytes) -> None:
        """Read from the beginning where the stream's newest entry is older than the last heard.

        It is another stream then: the store came back empty, with a clock that is behind.
        """
        answer = await self._call("XREVRANGE", self._stream, "+", "-", "COUNT", 1)
        if not answer or _when(answer[0][0]) < _when(last):
            self._last = b"0"

    def _apply(self, data: bytes, now: float | None = None) -> None:
        try:
            deltas = read(data)
        except ValueError:
            logger.warning("prefixes of another replica cannot be read")
            return
        known: dict[str, PoolPrefix] = {
            pool.name: pool.prefix for pool in self._pools() if pool.prefix is not None
        }
        for delta in deltas:
            prefix = known.get(delta.pool)
            if prefix is not None:
                self.heard += 1
                prefix.heard(delta, now)

    async def _write_snapshot(self) -> None:
        deltas: list[Delta] = []
        for pool in self._pools():
            if pool.prefix is not None:
                prefix = pool.prefix
                epochs = {name: prefix.epochs.get(name, "") for name in pool.endpoints}
                deltas += snapshot(pool.name, prefix.index, epochs, most=MOST_BLOCKS)
        content = (self._last or b"0") + b"\n" + write(deltas)
        await self._call("SET", self._snapshot, content, "EX", _SNAPSHOT_TTL_S)


def _when(entry: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.split(b"-"))


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Read what XREAD answers, in either of the client's shapes."""
    if not answer:
        return []
    if isinstance(answer, dict):
        streams: list[Any] = list(cast("dict[Any, Any]", answer).values())
    else:
        streams = [stream[1] for stream in answer]
    entries: list[Any] = streams[0]
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list):
        entries = cast("list[Any]", entries[0])
    return [(entry, _fields(fields)) for entry, fields in entries]


def _fields(fields: Any) -> dict[bytes, bytes]:
    if isinstance(fields, dict):
        return cast("dict[bytes, bytes]", fields)
    return dict(zip(fields[::2], fields[1::2], strict=True))
