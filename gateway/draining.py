"""How serving ends, as SIGTERM asks: with notice, and with time for what runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.gateway.config.sections import Drain as DrainSection

    from .connections import Connections

logger = logging.getLogger(__name__)

_LOOKS_S = 0.05
_GRACE_S = 1.0
"""For how long a connection must have been idle to be closed: a request may be on its way, to which
closing answers with a reset."""


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
        """Wait until no call is under way or may just be coming, or the limit has come."""
        limit = time.monotonic() + self._section.limit
        while not self._hurry.is_set():
            now = time.monotonic()
            self._connections.close_idle(now - _GRACE_S)
            if now >= limit or not self._connections.open:
                break
            await self._pause(_LOOKS_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
