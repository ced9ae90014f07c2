"""Connections to one engine over HTTP/1.1: keep-alive, TLS, and no byte more than is needed.

`Connections` opens exchanges and keeps the idle sockets. The most recently used one goes first, so
that the others grow old enough to be dropped: an engine closes idle connections (vLLM after 5 s),
and a request sent into that moment is lost. Where it happens all the same, the request goes out
once more on a fresh connection.
"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from forebay.policies.contracts import ConfigError, NotSent

from .connection_exchange import Exchange
from .connection_head import Heads
from .connection_socket import Connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from .base import Sink

_LONGEST_IDLE = 4.0
_VISIBLE = re.compile(r"[!-~]+")


class Connections:
    """Sends requests to one endpoint: an `Opener`.

    The certificates that TLS trusts are the system's, or those of `SSL_CERT_FILE` and
    `SSL_CERT_DIR`. Only the connect timeout is kept here: a caller that has waited long enough for
    an answer closes its stream.
    """

    def __init__(  # noqa: PLR0913 - one endpoint's settings, all by name
        self,
        url: str,
        *,
        key: str | None,
        connect_timeout: float,
        keep_alive: float,
        loop: asyncio.AbstractEventLoop,
        max_head: int = 64 << 10,
    ) -> None:
        """Raise ConfigError for a URL or a key that cannot be used."""
        parts = _split(url)
        secure = parts.scheme == "https"
        self.loop = loop
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if secure else 80)
        self.tls = _tls() if secure else None
        self.connect_timeout = connect_timeout
        self.max_head = max_head
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.name = f"{host}:{self.port}"
        try:
            self._heads = Heads(
                host=self.name if parts.port else host, prefix=parts.path.rstrip("/"), key=key
            )
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        self._longest_idle = min(_LONGEST_IDLE, keep_alive - 1.0)
        self._closed = False
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """Sockets that are connecting, in use, idle, or closing."""
        return len(self._all)

    @property
    def idle(self) -> int:
        """Sockets that wait for a request."""
        return len(self._idle)

    def open(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, sink: Sink
    ) -> Exchange:
        """Send one request; what goes wrong goes to the sink, after this has returned."""
        exchange = Exchange(sink, is_head=method == "HEAD")
        try:
            head = self._heads.write(method, path, headers, len(body))
        except ValueError as error:
            self.loop.call_soon(exchange.fail, NotSent(f"request not sent: {error}"))
            return exchange
        exchange.request = (head, body)
        connection = self._take()
        if connection is None:
            self.connect(exchange)
        else:
            connection.reuse(exchange)
        return exchange

    def connect(self, exchange: Exchange) -> None:
        """Carry an exchange on a fresh connection."""
        connection = Connection(self)
        self._all.add(connection)
        connection.connect(exchange)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        if self._closed or self._longest_idle <= 0:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._longest_idle, self._sweep)

    def forget(self, connection: Connection) -> None:
        """Count a connection no more."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close idle connections, and those in use when their answers end."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def _take(self) -> Connection | None:
        if not self._idle:
            return None
        if self.loop.time() - self._idle[-1].idle_since < self._longest_idle:
            return self._idle.pop()
        self._drop_idle()  # the freshest is too old, so all are
        return None

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self.loop.time() - self._longest_idle
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.pop(0).abort()
        if self._idle:
            self._sweeper = self.loop.call_at(
                self._idle[0].idle_since + self._longest_idle, self._sweep
            )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an address in brackets that is none
        parts, usable = urlsplit(""), False
    usable = (
        usable and _VISIBLE.fullmatch(url) is not None
    )  # urlsplit drops line breaks without a word
    if not usable or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError("an endpoint's url must read http(s)://host[:port][/path]")
    return parts


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
