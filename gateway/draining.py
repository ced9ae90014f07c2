"""How serving ends, as SIGTERM asks: with notice, and with time for what runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from .protocol import Phase

if TYPE_CHECKING:
    from forebay.gateway.config.sections import Drain as DrainSection

    from .protocol import Connections

logger = logging.getLogger(__name__)

_LOOKS_S = 0.05


class Drain:
    """One end of serving. `hurry` cuts short whatever is waited for."""

    def __init__(
        self, connections: Connections, section: DrainSection, hurry: asyncio.Event
    ) -> None:
        self._connections = connections
        self._section = section
        self._hurry = hurry

    async def notice(self) -> None:
        """Go on serving for a while, but tell callers and balancers to go elsewhere."""
        notice_s, limit_s = self._section.notice, self._section.limit
        self._connections.closing = True
        logger.info("draining", extra={"notice_s": notice_s, "limit_s": limit_s})
        await self._pause(notice_s)

    async def finish(self) -> None:
        """Wait until no call is under way, or the limit has come."""
        self._connections.close_idle()
        limit = time.monotonic() + self._section.limit
        while self._busy() and time.monotonic() < limit and not self._hurry.is_set():
            await self._pause(_LOOKS_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    def _busy(self) -> bool:
        """Whether an answer is under way, or a request is being read."""
        return any(c.phase != Phase.IDLE for c in self._connections.open)
