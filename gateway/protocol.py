"""The server side of HTTP/1.1: one connection, from its first byte to its last.

    data_received -> reading.Reader     bytes to messages, refusals included
                  -> line_up            pipelined messages are answered in order
                  -> Host.serve         the application answers through `messages.Responder`
    send, start, write, finish          and so the bytes go back

One `asyncio.Protocol` and no task, since a task a request and a wake-up a chunk cost more than all
the rest of the data plane. Time limits are kept by `Connections.sweep`, which the server calls once
a second: no timer for each request.
"""

from __future__ import annotations

import logging
from collections import deque
from enum import IntEnum
from http import HTTPStatus
from typing import TYPE_CHECKING

from .reading import Reader

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from .connections import Connections
    from .messages import Guest, Message

logger = logging.getLogger(__name__)

MAX_PIPELINED = 16
"""Requests waiting in line at which no more is read."""
HIGH_WATER, LOW_WATER = 64 << 10, 16 << 10
"""Bytes waiting for a caller at which the engine's stream is paused and resumed."""
LINGER = 2.0
"""Seconds a closed connection goes on reading, lest a reset swallow our last words."""
DEAF_LIMIT = 1 << 20
"""Bytes read and dropped on a connection that is being closed."""

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_JSON = (b"content-type", b"application/json")


class Phase(IntEnum):
    """Where a connection stands, which decides the time limit that applies."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    CLOSING = 4


class HttpProtocol:
    """One connection of a caller; also the `Responder` of the message being answered on it.

    An `asyncio.Protocol` by its methods alone: compiled, a class of a foreign base is no quicker.
    """

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._reader = Reader(server, self)
        self._pipeline: deque[Message] = deque()  # read, waiting for their turn
        self._answering: Message | None = None
        self._guest: Guest | None = None
        self.last = 0.0
        """When something last came, or an answer ended."""
        self._stalled: tuple[float, int] = (0.0, 0)
        self._dropped = 0
        self._untaken = 0  # bytes counted as buffered while the caller is slow
        self._chunked = self._closing = self._in_turn = False
        self.paused = False
        self.slow = False
        self.transport: asyncio.Transport
        self.peer = ""

    @property
    def phase(self) -> Phase:
        """Where the connection stands."""
        if self._closing:
            return Phase.CLOSING
        if self._answering is not None or self._pipeline:
            return Phase.ANSWER
        if self._reader.message is None:
            return Phase.IDLE
        return Phase.HEAD if self._reader.in_head else Phase.BODY

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = transport  # type: ignore[assignment]  # a TCP server makes no other kind
        self.transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else "local"
        self.last = self._server.clock()
        self._server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See asyncio.Protocol."""
        self._server.open.discard(self)
        self._closing = True
        self._reader.stop()
        self._count_taken()
        guest, self._guest = self._guest, None
        for message in (self._answering, *self._pipeline):
            self._release(message)
        self._answering = None
        self._pipeline.clear()
        if guest is not None:
            guest.caller_left()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A caller that shuts its side down counts as gone."""
        reader = self._reader
        if reader.deaf:
            self._drop(data)
            return
        self.last = now = self._server.clock()
        reader.read(data, now, alone=self._answering is None and not self.slow)

    def eof_received(self) -> None:
        """See asyncio.Protocol: None closes the connection."""

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.slow = True
        self._untaken = size = self.transport.get_write_buffer_size()
        self._stalled = (self._server.clock(), size)
        self._server.host.buffered(size)
        if self._guest is not None:
            self._guest.caller_slow()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.slow = False
        self._count_taken()
        if self._guest is not None:
            self._guest.caller_ready()
        self._next()

    def _count_taken(self) -> None:
        self._server.host.buffered(-self._untaken)
        self._untaken = 0

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > DEAF_LIMIT:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self.paused:
            self.paused = True
            self.transport.pause_reading()

    # -- what the reader may call (see reading.Line) ---------------------------------------------

    def line_up(self, message: Message) -> None:
        """Answer a message, or let it wait behind the one being answered."""
        if self._answering is None and not self.slow and not self._pipeline:
            self._answer(message)
            return
        self._pipeline.append(message)
        if self.slow or len(self._pipeline) >= MAX_PIPELINED:
            self._pause_reading()

    def ask_for_body(self) -> None:
        """Say 100 Continue, unless it would end up inside another answer."""
        if self._answering is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- what a guest may call (see messages.Responder) ------------------------------------------

    def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Give a whole answer."""
        message = self._answering
        assert message is not None  # a guest answers once, and only its own message
        head = self._head(status, headers, message)
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        if message.method != "HEAD":
            head.append(body)
        self.transport.write(b"".join(head))
        self._finished(message)

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], data: bytes) -> None:
        """Begin an answer of unknown length with its first bytes."""
        message = self._answering
        assert message is not None
        self._chunked = not message.old
        if message.old:
            message.keep_alive = False
        head = self._head(status, headers, message)
        if self._chunked:
            head.append(b"transfer-encoding: chunked\r\n\r\n")
            if data:
                head.append(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            head += (b"\r\n", data)
        self.transport.write(b"".join(head))

    def write(self, data: bytes) -> None:
        """Send more of a started answer."""
        if not data:
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes of a started answer and end it."""
        message = self._answering
        assert message is not None
        if self._chunked:
            end = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self.transport.write(end)
        elif data:
            self.transport.write(data)
        self._finished(message)

    def abort(self) -> None:
        """Break off: the caller sees the connection close before the end of the answer."""
        self._guest = None
        self.transport.abort()

    def forget_body(self) -> None:
        """Give back the memory of the request's body: it will not be sent again."""
        self._release(self._answering)

    # -- answering: our own part -----------------------------------------------------------------

    def _answer(self, message: Message) -> None:
        self._answering = message
        refusal = message.refusal
        if refusal is not None:
            self.send(refusal.status, (_JSON, *refusal.headers), refusal.body)
            return
        try:
            guest = self._server.host.serve(message, self)
        except Exception:
            logger.exception("request failed")
            guest = None
            if self._is_answering(message):
                refusal = self._server.host.refuse(500, "the gateway failed", message.path)
                self.send(500, (_JSON, *refusal.headers), refusal.body)
        if self._is_answering(message):
            self._guest = guest
            if guest is not None and self.slow:
                guest.caller_slow()

    def _is_answering(self, message: Message) -> bool:
        return self._answering is message

    def _head(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], message: Message
    ) -> list[bytes]:
        head = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status, self._server.date]
        head += [b"%b: %b\r\n" % pair for pair in headers]
        if self._server.closing:
            message.keep_alive = False
        if not message.keep_alive:
            head.append(b"connection: close\r\n")
        elif message.old:
            head.append(b"connection: keep-alive\r\n")
        return head

    def _release(self, message: Message | None) -> None:
        if message is not None and message.body:
            self._server.host.buffered(-len(message.body))
            message.body = b""

    def _finished(self, message: Message) -> None:
        """Go on with the next message, or close."""
        self._release(message)
        self._guest = self._answering = None
        self._chunked = False
        self.last = self._server.clock()
        if not message.keep_alive:
            self._close()
        elif self._pipeline:
            self._next()

    def _next(self) -> None:
        """Answer what waits in line; a loop, since many may be answered within one read."""
        if self._in_turn:
            return
        self._in_turn = True
        while not self._closing and not self.slow:
            if self._answering is None and self._pipeline:
                self._answer(self._pipeline.popleft())
            elif not self._read_on():
                break
        self._in_turn = False

    def _read_on(self) -> bool:
        """Read again when few requests wait in line; True when some of what came was unread."""
        reader, full = self._reader, len(self._pipeline) >= MAX_PIPELINED // 2
        if not self.paused or full or reader.deaf or self.transport.is_closing():
            return False
        self.paused = False
        data, reader.unread = reader.unread, b""
        if data:
            self.data_received(data)
        if not self.paused and not reader.deaf:
            self.transport.resume_reading()
        return bool(data)

    # -- closing, and time -----------------------------------------------------------------------

    def _close(self) -> None:
        """Close after what has been written; read on a little if the caller may be sending."""
        if self._closing:
            return
        reader = self._reader
        self._closing, self.last = True, self._server.clock()
        self._stalled = (self.last, self.transport.get_write_buffer_size())
        sending = reader.deaf or reader.message is not None or bool(self._pipeline)
        reader.stop()
        if sending and self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:
            self.transport.close()

    def refuse_unread(self) -> None:
        """Refuse what is being read: serving ends before its last byte will have come."""
        if self.phase in (Phase.HEAD, Phase.BODY):
            self._reader.refuse(503, "the gateway is shutting down; send this again")

    def check_time(self, now: float) -> None:
        """Close this connection if it has overstayed."""
        phase, limits, since = self.phase, self._server.limits, now - self.last
        message = self._reader.message
        if self.slow and phase != Phase.CLOSING:
            self._check_stall(now)
        elif phase == Phase.IDLE and since > limits.keep_alive:
            self.transport.close()
        elif phase == Phase.HEAD and message and now - message.received > limits.header_timeout:
            self._reader.refuse(408, "the request's headers did not come in time")
        elif phase == Phase.BODY and since > limits.body_timeout:
            self._reader.refuse(408, "the request's body did not come in time")
        elif phase == Phase.CLOSING:
            self._check_closing(now)

    def _check_closing(self, now: float) -> None:
        """Close for good when all has been sent, or nobody takes it."""
        if self.transport.get_write_buffer_size():
            self.last = now
            self._check_stall(now)
        elif now - self.last > LINGER:
            self.transport.abort()

    def _check_stall(self, now: float) -> None:
        """Break off with a caller that has taken nothing for too long."""
        since, size = self._stalled
        waiting = self.transport.get_write_buffer_size()
        if waiting < size:
            self._stalled = (now, waiting)
        elif waiting > size:
            self._stalled = (since, waiting)
        elif now - since > self._server.limits.client_stall:
            self.transport.abort()
