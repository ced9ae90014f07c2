"""Work that needs I/O after a call is settled: bounded, supervised, and flushed by a drain."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
WORKERS = 8
LONGEST_S = 5.0


class Chores:
    """Runs chores in the order they come, a few at a time; drops and counts what is too much."""

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(MAX_WAITING)
        self._workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]

    @property
    def waiting(self) -> int:
        """How many have not begun."""
        return self._queue.qsize()

    def put(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Take a chore; never waits."""
        try:
            self._queue.put_nowait(chore)
        except asyncio.QueueFull:
            self.dropped += 1

    async def flush(self, longest_s: float) -> bool:
        """Wait for all that waits; False when the time was not enough."""
        try:
            async with asyncio.timeout(longest_s):
                await self._queue.join()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            chore = await self._queue.get()
            try:
                async with asyncio.timeout(LONGEST_S):
                    await chore()
            except TimeoutError:
                logger.warning("chore took too long", extra={"limit_s": LONGEST_S})
            except Exception:
                logger.exception("chore failed")
            finally:
                self._queue.task_done()
