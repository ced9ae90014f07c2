"""What replicas do with their store again and again, and go on with when that has been away."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

GONE = (RedisError, OSError, TimeoutError)
"""What a call raises whose store does not answer."""
AWAY_S = 1.0
"""Between attempts while the store is away."""


class StoreTask:
    """Calls `turn`, which returns the pause after it, in seconds, until it is stopped.

    That the store went away, and that it is back, is said once each, in the words given.
    """

    def __init__(self, turn: Callable[[], Awaitable[float]], *, lost: str, back: str) -> None:
        self.away = False
        """The store did not answer when last asked."""
        self.times_away = 0
        self._turn = turn
        self._lost = lost
        self._back = back
        self._task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether it has begun and has not been stopped."""
        return self._task is not None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, whatever is under way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                pause_s = await self._turn()
            except GONE as error:
                self._went(error)
                pause_s = AWAY_S
            except Exception:
                logger.exception("a turn with the store failed")
                pause_s = AWAY_S
            else:
                if self.away:
                    self.away = False
                    logger.info(self._back)
            await asyncio.sleep(pause_s)

    def _went(self, error: BaseException) -> None:
        if not self.away:
            self.away = True
            self.times_away += 1
            logger.warning(self._lost, extra={"reason": type(error).__name__})
