"""Chores run in the background, a few at a time, and are flushed by a drain."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from forebay.gateway import chores as module
from forebay.gateway.chores import MAX_WAITING, WORKERS, Chores

if TYPE_CHECKING:
    import pytest
    from tests.conftest import Run


def test_chores_run_a_few_at_a_time_and_all_before_a_flush_ends(run: Run):
    async def main() -> None:
        chores, running, most, done = Chores(), 0, 0, 0

        async def chore() -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            done += 1

        for _ in range(50):
            chores.put(chore)
        assert await chores.flush(5.0)
        await chores.close()
        assert (done, most, chores.waiting, chores.dropped) == (50, WORKERS, 0, 0)

    run(main())


def test_a_chore_that_fails_is_logged_and_stops_nobody(run: Run, caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        chores, done = Chores(), asyncio.Event()

        async def fails() -> None:
            raise RuntimeError("a bug")

        async def works() -> None:
            done.set()

        for _ in range(WORKERS + 1):
            chores.put(fails)
        chores.put(works)
        await done.wait()
        assert await chores.flush(5.0)
        await chores.close()

    with caplog.at_level(logging.WARNING, module.__name__):
        run(main())
    assert [record.getMessage() for record in caplog.records] == ["chore failed"] * (WORKERS + 1)


def test_what_is_too_much_is_dropped_and_counted(run: Run):
    async def main() -> None:
        chores, hold = Chores(), asyncio.Event()

        async def waits() -> None:
            await hold.wait()

        for _ in range(MAX_WAITING + 10):
            chores.put(waits)
        assert (chores.waiting, chores.dropped) == (MAX_WAITING, 10)
        assert not await chores.flush(0.01)
        hold.set()
        assert await chores.flush(5.0)
        await chores.close()

    run(main())
