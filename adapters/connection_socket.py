"""One socket to an engine: sends a request, parses the answer, and pushes it.

The parser only collects. The sink is called after the parser has returned, from one place, so that
a sink may pause, close, or open the next request from inside any of its callbacks. Each read of the
socket is one `on_data`, however many chunks it held.

A connection goes back to its store only when the answer is whole, not a byte follows it, keep-alive
was promised, and the request has gone out to its last byte.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol, cast

from forebay.policies.contracts import EngineFailed, EngineUnreachable, NotSent

from .connection_answer import Answer

if TYPE_CHECKING:
    import asyncio
    import ssl

    from .connection_exchange import Exchange

_JOINED = 64 << 10
"""A body up to this long is copied behind its head, so that both leave in one packet."""
_GONE = (b"", b"")
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Why a connect fails before any packet has left."""


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


class Connection:
    """Carries one exchange at a time.

    An `asyncio.Protocol` by its methods alone: compiled, a class of a foreign base is no quicker.
    """

    __slots__ = (
        "_answer",
        "_exchange",
        "_pushed",
        "_read_paused",
        "_reused",
        "_store",
        "_task",
        "_timed_out",
        "_timer",
        "_transport",
        "idle_since",
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[tuple[asyncio.Transport, asyncio.Protocol]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed_out = False
        self._read_paused = False
        self._reused = False
        self._pushed = False
        self._answer = Answer(max_head=store.max_head)
        self.idle_since = 0.0

    def connect(self, exchange: Exchange) -> None:
        """Connect, then send the exchange's request."""
        self._exchange = exchange
        exchange.carrier = self
        store, loop = self._store, self._store.loop
        self._timer = loop.call_later(store.connect_timeout, self._time_out)
        self._task = loop.create_task(
            loop.create_connection(self._protocol, store.host, store.port, ssl=store.tls)
        )
        # Not a try around an await: a task cancelled before its first step enters no block.
        self._task.add_done_callback(self._connected)

    def _protocol(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", self)

    def _time_out(self) -> None:
        self._timed_out = True
        if self._task is not None:
            self._task.cancel()

    def _connected(self, task: asyncio.Task[tuple[asyncio.Transport, asyncio.Protocol]]) -> None:
        self._task = None
        self._stop_timer()
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return  # from here on connection_lost tells
        # A transport may exist even so, closed by the loop: uvloop then never says it is lost.
        self._store.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(self._failure(error))

    def _failure(self, error: BaseException | None) -> EngineFailed:
        why = self._why_not(error)
        if isinstance(error, OSError) and error.errno in _OURS:
            text = f"the gateway has no socket left: {why}; raise its limits (ulimit -n)"
            return NotSent(text, status=503, code="no_socket_left", retry_after=1.0)
        return EngineUnreachable(f"cannot connect to {self._store.name}: {why}")

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
        self._reused = True
        self._exchange = exchange
        exchange.carrier = self
        self._send(exchange)

    def _send(self, exchange: Exchange) -> None:
        transport = self._transport
        assert transport is not None
        head, body = exchange.request
        self._pushed = False
        self._answer.begin(is_head=exchange.is_head)
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
        answer = self._answer
        fault = answer.feed(data)
        if not self._pushed and not self._push_head(exchange, fault):
            return
        parts = answer.parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            exchange.sink.on_data(body)
        if answer.complete or fault is not None:
            self._end(exchange, fault)

    def _push_head(self, exchange: Exchange, fault: str | None) -> bool:
        """Push the head, if it is whole. True when the exchange goes on from there."""
        answer = self._answer
        if not answer.status:
            if fault is not None:
                self._fail(exchange, fault)
            return False
        self._pushed = True
        exchange.request = _GONE
        if exchange.is_head:
            answer.parts.clear()
        exchange.sink.on_head(answer.status, answer.headers)
        if self._exchange is not exchange:
            self._end(exchange, None)
            return False
        return True

    def _end(self, exchange: Exchange, fault: str | None) -> None:
        if self._exchange is not exchange:  # closed by its sink
            if self._answer.complete:
                self._recycle()
        elif self._answer.complete:
            self._exchange = None
            self._recycle()
            exchange.finish()
        elif fault is not None:
            self._fail(exchange, fault)

    def _recycle(self) -> None:
        transport = self._transport
        assert transport is not None
        if not self._answer.keep or transport.is_closing() or transport.get_write_buffer_size():
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

    def eof_received(self) -> None:
        """Take the engine's leaving at once: the transport would first flush what it still has."""
        self._lose(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._store.forget(self)
        if not self._timed_out:  # else _connected tells
            self._lose(exc)
        self._answer.drop()

    def _lose(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._reused and not self._answer.heard and not exchange.retried:
            exchange.retried = True
            exchange.sent = False
            self._store.connect(exchange)
        elif error is None and self._answer.ends_with_connection():
            exchange.finish()
        else:
            exchange.fail(EngineFailed(self._told_loss()))

    def _told_loss(self) -> str:
        when = "before it answered"
        if self._answer.heard:
            when = "in the middle of its answer" if self._pushed else "in the head of its answer"
        return f"{self._store.name} closed the connection {when}"

    def give_up(self) -> None:
        """Let go of the exchange. A complete answer still saves the connection."""
        self._exchange = None
        if self._transport is not None:
            if not self._answer.complete:
                self._transport.abort()
        elif self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Close the socket now."""
        if self._transport is not None:
            self._transport.abort()
