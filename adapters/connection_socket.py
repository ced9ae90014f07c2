"""One socket to an engine: sends a request, parses the answer, and pushes it.

The parser only collects. The sink is called after the parser has returned, from one place, so that
a sink may pause, close, or open the next request from inside any of its callbacks. Each read of the
socket is one `on_data`, however many chunks it held.

A connection goes back to its store only when the answer is whole, not a byte follows it, keep-alive
was promised, and the request has gone out to its last byte.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from forebay.policies.contracts import EngineFailed, EngineUnreachable

if TYPE_CHECKING:
    import ssl

    from .base import Headers
    from .connection_exchange import Exchange

_JOINED = 64 << 10
"""A body up to this long is copied behind its head, so that both leave in one packet."""
_MAX_INTERIM = 16
"""More 1xx answers than this are a fault."""
_H = ord("H")
_GONE = (b"", b"")


class Store(Protocol):
    """What a connection must know of its endpoint."""

    loop: asyncio.AbstractEventLoop
    host: str
    port: int
    name: str
    tls: ssl.SSLContext | None
    connect_timeout: float
    max_head: int

    def connect(self, exchange: Exchange) -> None:
        """Carry an exchange on a fresh connection."""
        ...

    def release(self, connection: Connection) -> None:
        """Take back a connection that can be used again."""
        ...

    def forget(self, connection: Connection) -> None:
        """Count a connection no more: its socket is gone."""
        ...


class _MalformedError(Exception):
    """Raised inside the parser's callbacks, to stop it."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time."""

    __slots__ = (
        "_barren",
        "_chunked",
        "_complete",
        "_exchange",
        "_head_bytes",
        "_headers",
        "_heard",
        "_interim",
        "_keep",
        "_parser",
        "_parts",
        "_pushed",
        "_read_paused",
        "_reused",
        "_status",
        "_store",
        "_task",
        "_timed_out",
        "_timer",
        "_transport",
        "idle_since",
        "on_body",
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[tuple[asyncio.Transport, Connection]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed_out = False
        self._read_paused = False
        self._reused = False
        self.idle_since = 0.0
        self._parts: list[bytes] = []
        # What the parser calls for each chunk: a bound C method costs half of one in Python.
        self.on_body = self._parts.append
        self._begin()
        self._parser = HttpResponseParser(self)

    def _begin(self) -> None:
        self._parts.clear()  # a sink that closed in on_head left the body here
        self._heard = False
        self._pushed = False
        self._complete = False
        self._keep = False
        self._chunked = False
        self._status = 0
        self._interim = 0
        self._head_bytes = 0
        self._barren = 0
        self._headers: Headers = []

    def connect(self, exchange: Exchange) -> None:
        """Connect, then send the exchange's request."""
        self._exchange = exchange
        exchange.carrier = self
        store, loop = self._store, self._store.loop
        self._timer = loop.call_later(store.connect_timeout, self._time_out)
        self._task = loop.create_task(
            loop.create_connection(lambda: self, store.host, store.port, ssl=store.tls)
        )
        # Not a try around an await: a task cancelled before its first step enters no block.
        self._task.add_done_callback(self._connected)

    def _time_out(self) -> None:
        self._timed_out = True
        if self._task is not None:
            self._task.cancel()

    def _connected(self, task: asyncio.Task[tuple[asyncio.Transport, Connection]]) -> None:
        self._task = None
        self._stop_timer()
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return  # from here on connection_lost tells
        # A transport may exist even so, closed by the loop: uvloop then never says it is lost.
        self._store.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            why = self._why_not(error)
            exchange.fail(EngineUnreachable(f"cannot connect to {self._store.name}: {why}"))

    def _why_not(self, error: BaseException | None) -> str:
        if self._timed_out:
            return f"no connection within {self._store.connect_timeout:g} s"
        if error is None:
            return "the loop is shutting down"
        if isinstance(error, ConnectionError) and error.errno:
            return os.strerror(error.errno).lower()  # the two loops word it differently
        return (error.strerror if isinstance(error, OSError) else None) or str(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send at once: the task that connected only wakes a turn later."""
        # A cast, not isinstance: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._stop_timer()
        if self._exchange is None or self._timed_out:
            self._transport.abort()
        else:
            self._send(self._exchange)
            if self._exchange.paused:
                # Later, since uvloop begins to read after this call, whatever was asked in it.
                self._store.loop.call_soon(self.heed_pause, self._exchange)

    def reuse(self, exchange: Exchange) -> None:
        """Send the exchange's request on this idle connection."""
        self._begin()
        self._reused = True
        self._exchange = exchange
        exchange.carrier = self
        self._send(exchange)

    def _send(self, exchange: Exchange) -> None:
        transport = self._transport
        assert transport is not None
        head, body = exchange.request
        exchange.sent = True
        if len(body) <= _JOINED:
            transport.write(head + body)
        else:
            transport.writelines((head, body))

    def pause_writing(self) -> None:
        """Note that much of the request is still here."""
        if self._exchange is not None:
            self._exchange.sent = False

    def resume_writing(self) -> None:
        """Note that nearly all of the request has gone."""
        if self._exchange is not None:
            self._exchange.sent = True

    def heed_pause(self, exchange: Exchange) -> None:
        """Read or not, as the exchange wishes."""
        transport = self._transport
        if transport is None or self._exchange is not exchange or transport.is_closing():
            return
        if exchange.paused is self._read_paused:
            return
        self._read_paused = exchange.paused
        if exchange.paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Parse what came, then push it. One function, since it runs for every chunk."""
        exchange = self._exchange
        if exchange is None:
            self.abort()  # nobody asked
            return
        fault = None
        try:
            if self._pushed:
                self._parser.feed_data(data)
            else:
                self._feed_head(data)
        except (HttpParserError, HttpParserUpgrade, _MalformedError) as error:
            fault = _told(error)
        parts = self._parts
        if self._complete and (fault is not None or not self._ends_clean(data)):
            self._keep = False
        if not self._pushed and not self._push_head(exchange, fault):
            return
        if parts:
            self._barren = 0
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            exchange.sink.on_data(body)
        else:
            self._barren += len(data)
        if self._complete or fault is not None or self._barren > self._store.max_head:
            self._end(exchange, fault)

    def _feed_head(self, data: bytes) -> None:
        """Feed what may hold the head, of which not a byte over the limit reaches the parser."""
        if not self._heard:
            self._heard = True
            if data[0] != _H:  # the parser would skip empty lines, and take RTSP and ICE for HTTP
                raise _MalformedError("the answer does not begin with HTTP/")
        room = self._store.max_head - self._head_bytes
        self._head_bytes += len(data)
        self._parser.feed_data(data[:room])
        if len(data) <= room:
            return
        if not self._status:
            raise _MalformedError(f"the answer's head is over {self._store.max_head} bytes")
        self._parser.feed_data(data[room:])

    def _push_head(self, exchange: Exchange, fault: str | None) -> bool:
        """Push the head, if it is whole. True when the exchange goes on from there."""
        if not self._status:
            if fault is not None:
                self._fail(exchange, fault)
            return False
        self._pushed = True
        exchange.request = _GONE
        if exchange.is_head:
            self._parts.clear()
        exchange.sink.on_head(self._status, self._headers)
        if self._exchange is not exchange:
            self._end(exchange, None)
            return False
        return True

    def _end(self, exchange: Exchange, fault: str | None) -> None:
        if self._exchange is not exchange:  # closed by its sink
            if self._complete:
                self._recycle()
        elif self._complete:
            self._exchange = None
            self._recycle()
            exchange.finish()
        else:
            limit = self._store.max_head
            self._fail(exchange, fault or f"over {limit} bytes of chunk heads or trailers")

    def _recycle(self) -> None:
        transport = self._transport
        assert transport is not None
        if not self._keep or transport.is_closing() or transport.get_write_buffer_size():
            transport.abort()
            return
        if self._read_paused:
            self._read_paused = False
            transport.resume_reading()
        self._store.release(self)

    def _fail(self, exchange: Exchange, fault: str) -> None:
        self._exchange = None
        self.abort()
        exchange.fail(EngineFailed(f"no valid HTTP from {self._store.name}: {fault}"))

    def _ends_clean(self, data: bytes) -> bool:
        """Say whether the answer ends where the data ends.

        The parser finds whatever follows but for CR and LF, which it skips.
        """
        if self._parts and not self._chunked:
            last = self._parts[-1]
            return data.endswith(last) and not last.isspace()
        return data.endswith(b"\r\n\r\n") and data[-5:-4] not in (b"\r", b"\n", b"")

    def on_message_begin(self) -> None:
        """Begin a head, of an interim answer or of the answer."""
        if self._complete:
            raise _MalformedError("more than one answer")
        self._headers = []
        self._chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which come after the head, are dropped."""
        if self._status:
            return
        name = name.lower()
        if name == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                raise _MalformedError("a transfer-encoding other than chunked")
            self._chunked = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head."""
        parser = self._parser
        status, version = parser.get_status_code(), parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _MalformedError(f"HTTP/{version}")
        if self._chunked and version == "1.0":
            raise _MalformedError("a chunked body in HTTP/1.0")
        if not 100 <= status < 600:
            raise _MalformedError(f"status {status}")
        if status < 200:
            self._count_interim(status)
            return
        self._status = status
        exchange = self._exchange
        if exchange is not None and exchange.is_head:
            self._complete = True  # whatever its headers promise, no body follows
        else:
            self._keep = parser.should_keep_alive()

    def _count_interim(self, status: int) -> None:
        self._interim += 1
        if status == 101:
            raise _MalformedError("an upgrade that was not asked for")
        if self._interim > _MAX_INTERIM:
            raise _MalformedError(f"over {_MAX_INTERIM} interim answers")

    def on_message_complete(self) -> None:
        """Note the end of the answer; an interim one does not count."""
        if self._status:
            self._complete = True

    def eof_received(self) -> None:
        """Take the engine's leaving at once: the transport would first flush what it still has."""
        self._lose(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._store.forget(self)
        if not self._timed_out:  # else _connected tells
            self._lose(exc)
        del self._parser  # which refers back to this connection

    def _lose(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._reused and not self._heard and not exchange.retried:
            exchange.retried = True
            exchange.sent = False
            self._store.connect(exchange)
        elif error is None and self._pushed and self._ends_with_connection():
            exchange.finish()
        else:
            exchange.fail(EngineFailed(self._told_loss()))

    def _ends_with_connection(self) -> bool:
        return not any(name in _FRAMING for name, _ in self._headers)

    def _told_loss(self) -> str:
        when = "before it answered"
        if self._heard:
            when = "in the middle of its answer" if self._pushed else "in the head of its answer"
        return f"{self._store.name} closed the connection {when}"

    def give_up(self) -> None:
        """Let go of the exchange. A complete answer still saves the connection."""
        self._exchange = None
        if self._transport is not None:
            if not self._complete:
                self._transport.abort()
        elif self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Close the socket now."""
        if self._transport is not None:
            self._transport.abort()


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


def _told(error: Exception) -> str:
    """Say what the parser, or our callback that stopped it, found: never the engine's bytes."""
    if isinstance(error, HttpParserUpgrade):
        return "an upgrade that was not asked for"
    return str(error.__context__ or error).lower()
