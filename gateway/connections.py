"""The connections of a server's callers: what they share, and what is done to all at once."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import TYPE_CHECKING, cast

from .heads import KnownHeads
from .messages import Limits
from .protocol import HttpProtocol, Phase

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from forebay.gateway.config.sections import Config

    from .messages import Host


def limits_of(config: Config) -> Limits:
    """Return what a connection may do."""
    server = config.server
    return Limits(
        max_body=server.max_body,
        max_header=server.max_header,
        header_timeout=server.header_timeout,
        body_timeout=server.body_timeout,
        keep_alive=server.keep_alive,
        client_stall=server.client_stall,
    )


class Connections:
    """All connections of one listening server, and the clock that they share."""

    def __init__(self, host: Host, limits: Limits, clock: Callable[[], float]) -> None:
        self.host = host
        self.limits = limits
        self.clock = clock
        self.closing = False
        """Draining: answers say `connection: close`."""
        self.open: set[HttpProtocol] = set()
        self.heads = KnownHeads()
        self.date = _date()

    def accept(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return cast("asyncio.Protocol", HttpProtocol(self))

    def sweep(self, now: float) -> None:
        """Close what has been idle, slow or stuck for too long."""
        self.date = _date()
        for connection in tuple(self.open):
            connection.check_time(now)

    def close_idle(self, since: float) -> None:
        """Close the connections on which nothing has been under way since then."""
        for connection in tuple(self.open):
            if connection.phase == Phase.IDLE and connection.last <= since:
                connection.transport.close()

    def refuse_unread(self) -> None:
        """Refuse the requests that are still being read."""
        for connection in tuple(self.open):
            connection.refuse_unread()


def _date() -> bytes:
    return b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
