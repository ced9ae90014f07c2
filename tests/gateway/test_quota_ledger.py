"""Usage that is kept: what is added, what is read back, what a failing book does."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from typing import TYPE_CHECKING

import pytest

from forebay.gateway.quota.ledger import Ledger
from forebay.gateway.quota.ledger_redis import RedisBook
from forebay.gateway.quota.ledger_sqlite import SqliteBook
from forebay.gateway.quota.tariff import Charge
from forebay.gateway.quota.usage_rows import Key, Row, Sums, day_number, spent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.conftest import RedisServer, Run

    from forebay.gateway.quota.usage_rows import Book

numbers = itertools.count()


@pytest.fixture(params=["sqlite", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Book]:
    """Make books that hold the same pages."""
    if request.param == "sqlite":
        book = SqliteBook(tmp_path / "usage.db")
        book.prepare()
        return lambda: SqliteBook(tmp_path / "usage.db")
    server: RedisServer = request.getfixturevalue("redis_server")
    prefix = f"ledger{next(numbers)}"
    return lambda: RedisBook(server.url, ["acme", "globex"], prefix=prefix)


def charge(prompt: int = 10, cached: int = 4, output: int = 7, nano: int = 5) -> Charge:
    return Charge(prompt, cached, output, nano)


def row(tenant: str, model: str, day: str, times: int = 1) -> Row:
    return Row(
        tenant=tenant,
        model=model,
        day=day,
        requests=times,
        prompt_tokens=10 * times,
        cached_tokens=4 * times,
        output_tokens=7 * times,
        cost=5e-9 * times,
    )


def test_what_was_used_is_there_after_a_restart(make: Callable[[], Book], run: Run):
    async def write() -> None:
        ledger = Ledger(make())
        ledger.add("acme", "small", 20261129, charge())
        await ledger.flush()
        ledger.add("acme", "small", 20261129, charge())
        ledger.add("acme", "a|b", 20261130, charge())
        ledger.add("globex", "small", 20261129, charge())
        await ledger.close()

    async def read(tenants: Sequence[str] | None, since: int) -> list[Row]:
        ledger = Ledger(make())
        rows = await ledger.rows(tenants, since=since)
        await ledger.close()
        return rows

    run(write())
    assert run(read(None, 0)) == [
        row("acme", "small", "2026-11-29", 2),
        row("globex", "small", "2026-11-29"),
        row("acme", "a|b", "2026-11-30"),
    ]
    assert run(read(["acme"], 20261130)) == [row("acme", "a|b", "2026-11-30")]
    assert run(read(["nobody"], 0)) == []


def test_a_batch_that_is_written_again_counts_once(make: Callable[[], Book], run: Run):
    async def scenario() -> list[Row]:
        book = make()
        sums: dict[Key, Sums] = {("acme", "small", 20261129): [1, 10, 4, 7, 5]}
        await book.write("batch", sums)
        await book.write("batch", sums)
        rows = await book.rows(None, 0, 99999999)
        await book.close()
        return rows

    assert run(scenario()) == [row("acme", "small", "2026-11-29")]


class Failing:
    """Writes, but the first answers get lost."""

    tenants: Sequence[str] = ()

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.written: dict[str, Mapping[Key, Sums]] = {}

    async def write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        self.written[name] = {key: list(values) for key, values in sums.items()}
        if self.failures:
            self.failures -= 1
            raise sqlite3.OperationalError("disk is full")

    async def rows(self, tenants: Sequence[str] | None, since: int, until: int) -> list[Row]:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def test_what_could_not_be_written_waits_under_its_name(caplog: pytest.LogCaptureFixture):
    async def scenario() -> tuple[list[bool], Failing]:
        book = Failing(2)
        ledger = Ledger(book)
        ledger.add("acme", "small", 20261129, charge())
        flushed = [await ledger.flush()]
        ledger.add("acme", "small", 20261129, charge())
        flushed += [await ledger.flush(), await ledger.flush()]
        return flushed, book

    caplog.set_level("INFO")
    flushed, book = asyncio.run(scenario())
    assert flushed == [False, False, True]
    assert list(book.written.values()) == [{("acme", "small", 20261129): [1, 10, 4, 7, 5]}] * 2
    assert [record.message for record in caplog.records] == [
        "usage cannot be written; it waits",
        "usage is written again",
    ]


def test_a_book_that_is_away_is_no_error_of_the_ledger(run: Run):
    async def scenario() -> bool:
        ledger = Ledger(RedisBook("redis://127.0.0.1:1/0", ["acme"]))
        ledger.add("acme", "small", 20261129, charge())
        flushed = await ledger.flush()
        assert ledger.book is not None
        await ledger.book.close()
        return flushed

    assert run(scenario()) is False


class Busy:
    """A book during whose writes more is used."""

    tenants: Sequence[str] = ()

    def __init__(self) -> None:
        self.ledger = Ledger(self)
        self.written: list[int] = []

    async def write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        assert name
        self.written.append(sums["acme", "tiny", 20261129][0])
        if len(self.written) < 100:
            self.ledger.add("acme", "tiny", 20261129, charge())

    async def rows(self, tenants: Sequence[str] | None, since: int, until: int) -> list[Row]:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


def test_what_is_used_during_a_write_waits_for_the_next(run: Run):
    busy = Busy()
    for _ in range(3):
        busy.ledger.add("acme", "tiny", 20261129, charge())
    assert run(busy.ledger.flush())
    assert busy.written == [3]
    assert run(busy.ledger.flush())
    assert busy.written == [3, 1]


def test_a_file_that_cannot_be_made_is_told(tmp_path: Path):
    with pytest.raises(sqlite3.Error):
        SqliteBook(tmp_path / "no" / "such" / "folder").prepare()
    assert SqliteBook(tmp_path / "usage.db").read(None) == []


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path, run: Run):
    file, moved = tmp_path / "usage.db", tmp_path / "november.db"

    async def scenario() -> None:
        book = SqliteBook(file)
        book.prepare()
        ledger = Ledger(book)
        ledger.add("acme", "small", 20261129, charge())
        assert await ledger.flush()
        for part in ("", "-wal", "-shm"):
            file.with_name(file.name + part).rename(moved.with_name(moved.name + part))
        ledger.add("globex", "small", 20261130, charge())
        assert await ledger.close()

    run(scenario())
    assert SqliteBook(moved).read(None) == [row("acme", "small", "2026-11-29")]
    assert SqliteBook(file).read(None) == [row("globex", "small", "2026-11-30")]


def test_counters_begin_with_the_day_and_the_month():
    rows = [
        row("acme", "small", "2026-11-29", 2),
        row("acme", "large", "2026-11-29"),
        row("acme", "small", "2026-11-03"),
        row("acme", "small", "2026-10-31"),
    ]
    assert spent(rows, 20261129, 202611) == {"acme": (51, 15, 68, 20)}


def test_a_day_is_a_number_that_sorts():
    assert day_number("2026-11-29") == 20261129
    with pytest.raises(ValueError, match="Invalid"):
        day_number("yesterday")
