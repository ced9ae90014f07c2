"""Who used what: requests, tokens and cost by tenant, model and day, kept for good.

Usage is summed in memory and written once a second, in a thread (SQLite) or in one call (Redis): a
process that is killed loses what it settled in its last second. A batch that was written but not
answered is not counted twice, since it carries a name of its own.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from msgspec import Struct

from forebay.policies.quota import NANO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .tariff import Charge

logger = logging.getLogger(__name__)

MAX_SUMS = 100_000
"""Sums held while they cannot be written; beyond it, new ones are lost and counted."""


class Row(Struct, frozen=True, kw_only=True):
    """What one tenant used of one model on one day."""

    tenant: str
    model: str
    day: str
    """As 2026-11-29, UTC."""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens."""
    output_tokens: int = 0
    cost: float = 0.0
    """In the money of the prices."""


Key = tuple[str, str, int]
"""Tenant, model, day as 20261129."""
Sums = list[int]
"""Requests, prompt, cached and output tokens, and nano of money."""


class Book(Protocol):
    """Where usage is kept. Any of these may raise OSError or sqlite3.Error."""

    tenants: Sequence[str]
    """Whom `rows` tells of where it is not told whom to, if the book cannot list them itself."""

    async def write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        """Add to what is there, once for each name."""
        ...

    async def rows(self, tenants: Sequence[str] | None, since: int, until: int) -> list[Row]:
        """Return what is there of these days, both included, in the order of day and names."""
        ...

    async def close(self) -> None:
        """Let go of what is open."""
        ...


class Ledger:
    """Gathers charges, and hands them to a book."""

    def __init__(self, book: Book | None = None) -> None:
        """Without a book usage is counted, but not kept."""
        self.book = book
        self.lost = 0
        """Requests whose usage could not be kept."""
        self.ok = True
        self.pending: dict[Key, Sums] = {}
        """Not yet handed to the book."""
        self._unwritten: tuple[str, dict[Key, Sums]] | None = None
        self._writing = asyncio.Lock()

    def add(self, tenant: str, model: str, day: int, charge: Charge) -> None:
        """Note what one call used; never waits."""
        key = (tenant, model, day)
        sums = self.pending.get(key)
        if sums is None:
            if len(self.pending) >= MAX_SUMS:
                self.lost += 1
                return
            sums = self.pending[key] = [0, 0, 0, 0, 0]
        sums[0] += 1
        sums[1] += charge.prompt
        sums[2] += charge.cached
        sums[3] += charge.output
        sums[4] += charge.nano

    async def flush(self) -> bool:
        """Write what has been gathered; False when it could not be and waits for the next time."""
        async with self._writing:
            if not await self._write_unwritten():
                return False
            # One batch: under load there is always more by the time that one is written.
            self._unwritten = (uuid4().hex, self.pending)
            self.pending = {}
            return await self._write_unwritten()

    async def _write_unwritten(self) -> bool:
        if self._unwritten is not None:
            if self._unwritten[1] and not await self._write(*self._unwritten):
                return False
            self._unwritten = None
        return True

    async def _write(self, name: str, sums: dict[Key, Sums]) -> bool:
        if self.book is None:
            return True
        try:
            await self.book.write(name, sums)
        except (OSError, sqlite3.Error) as error:
            if self.ok:
                logger.warning("usage cannot be written; it waits", extra={"reason": str(error)})
            self.ok = False
            return False
        if not self.ok:
            logger.info("usage is written again")
        self.ok = True
        return True

    async def rows(
        self, tenants: Sequence[str] | None = None, *, since: int = 0, until: int = 99999999
    ) -> list[Row]:
        """Return usage by day and model; days as 20261129. Writes first what is in memory."""
        await self.flush()
        return [] if self.book is None else await self.book.rows(tenants, since, until)

    async def close(self) -> bool:
        """Write what is left and close the book; False when it could not be written."""
        written = await self.flush()
        if self.book is not None:
            await self.book.close()
        return written

    def rename(self, tenants: Sequence[str]) -> None:
        """Take the tenants of a reloaded configuration."""
        if self.book is not None:
            self.book.tenants = tenants


def row_of(key: Key, sums: Sequence[int]) -> Row:
    """Word sums as a row."""
    tenant, model, day = key
    return Row(
        tenant=tenant,
        model=model,
        day=f"{day // 10000}-{day // 100 % 100:02}-{day % 100:02}",
        requests=sums[0],
        prompt_tokens=sums[1],
        cached_tokens=sums[2],
        output_tokens=sums[3],
        cost=sums[4] / NANO,
    )


def day_number(day: str) -> int:
    """Return 2026-11-29 as 20261129. Raises ValueError."""
    from datetime import date  # noqa: PLC0415 - only who reads usage needs it

    return int(date.fromisoformat(day).strftime("%Y%m%d"))


_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    tenant TEXT NOT NULL, model TEXT NOT NULL, day INTEGER NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, nano INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (name TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    output_tokens = output_tokens + excluded.output_tokens, nano = nano + excluded.nano
"""
_FORGET_BATCHES = "DELETE FROM batches WHERE at < unixepoch() - 86400"
_BUSY_S = 5.0


class SqliteBook:
    """A file. Any number of processes may write to it; each write is one transaction."""

    tenants: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        # Kept between writes: closing the last one empties the write-ahead log, with two fsyncs.
        self._kept: sqlite3.Connection | None = None
        self._inode = 0

    def prepare(self) -> None:
        """Make the file if it is not there. Raises OSError or sqlite3.Error."""
        with closing(self._open()) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(_SCHEMA)

    async def write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        """See Book."""
        await asyncio.to_thread(self._write, name, sums)

    async def rows(self, tenants: Sequence[str] | None, since: int, until: int) -> list[Row]:
        """See Book."""
        return await asyncio.to_thread(self.read, tenants, since, until)

    async def close(self) -> None:
        """See Book."""
        await asyncio.to_thread(self._let_go)

    def read(
        self, tenants: Sequence[str] | None, since: int = 0, until: int = 99999999
    ) -> list[Row]:
        """Return rows at once, for commands that have no loop."""
        if not self._path.exists():
            return []
        with closing(self._open()) as database:
            found = database.execute(
                "SELECT tenant, model, day, requests, prompt_tokens, cached_tokens, output_tokens,"
                " nano FROM usage WHERE day BETWEEN ? AND ? ORDER BY day, tenant, model",
                (since, until),
            )
            wanted = None if tenants is None else set(tenants)
            return [row_of(row[:3], row[3:]) for row in found if wanted is None or row[0] in wanted]

    def _open(self) -> sqlite3.Connection:
        # The ledger writes in one thread after the other, never in two at once.
        return sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)

    def _keep(self) -> sqlite3.Connection:
        """Return the open file; where it was moved away, the one that lies there by now."""
        if not self._path.exists():
            self.prepare()
        inode = self._path.stat().st_ino
        if self._kept is None or inode != self._inode:
            self._let_go()
            self._kept, self._inode = self._open(), inode
        return self._kept

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        try:
            with self._keep() as database:
                database.execute(_FORGET_BATCHES)
                new = database.execute(
                    "INSERT OR IGNORE INTO batches VALUES (?, unixepoch())", (name,)
                ).rowcount
                if new:
                    database.executemany(_ADD, [(*key, *values) for key, values in sums.items()])
        except (OSError, sqlite3.Error):
            self._let_go()
            raise


def spent(rows: Sequence[Row], day: int, month: int) -> dict[str, tuple[int, int, int, int]]:
    """Return each tenant's tokens and nano of a day, and of its month, as counters take them."""
    found: dict[str, list[int]] = {}
    for row in rows:
        number = int(row.day.replace("-", ""))
        if number // 100 != month:
            continue
        sums = found.setdefault(row.tenant, [0, 0, 0, 0])
        tokens, nano = row.prompt_tokens + row.output_tokens, round(row.cost * NANO)
        if number == day:
            sums[0] += tokens
            sums[1] += nano
        sums[2] += tokens
        sums[3] += nano
    return {tenant: (s[0], s[1], s[2], s[3]) for tenant, s in found.items()}
