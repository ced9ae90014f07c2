"""Who used what: requests, tokens and cost by tenant, model and day, kept for good.

Usage is summed in memory and written once a second, in a thread (SQLite) or in one call (Redis): a
process that is killed loses what it settled in its last second. A batch that was written but not
answered is not counted twice, since it carries a name of its own.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tariff import Charge
    from .usage_rows import Book, Key, Row, Sums

logger = logging.getLogger(__name__)

MAX_SUMS = 100_000
"""Sums held while they cannot be written; beyond it, new ones are lost and counted."""


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
