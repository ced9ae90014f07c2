"""Usage kept in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from .usage_rows import row_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .usage_rows import Key, Row, Sums

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
