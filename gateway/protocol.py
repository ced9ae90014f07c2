"""The server side of HTTP/1.1: reads requests off a connection and writes answers to it.

One `asyncio.Protocol` and no task, since a task a request and a wake-up a chunk cost more than all
the rest of the data plane. Syntax is llhttp's (strict): conflicting lengths, bare line feeds in
headers and the like never get past it. Pipelined messages are answered in order.

Time limits are kept by `Connections.sweep`, which the server calls once a second: no timer for each
request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from email.utils import formatdate
from enum import IntEnum
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

import httptools

from .heads import KnownHeads
from .messages import Guest, Host, Limits, Message, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

MAX_URL = 8192
MAX_HEADERS = 100
MAX_PIPELINED = 16
"""Requests waiting in line at which no more is read."""
_PIECE = 16 << 10
"""Of one read this much is parsed at a time: it may hold thousands of requests."""
_FOLDED = 1024
"""Parts of a body that are joined to one: an object for two bytes weighs 30 times as much."""
HIGH_WATER, LOW_WATER = 64 << 10, 16 << 10
"""Bytes waiting for a caller at which the engine's stream is paused and resumed."""
SWALLOW = 64 << 10
"""A refused body up to this long is read and dropped, so that the connection can be kept."""
LINGER = 2.0
"""Seconds a closed connection goes on reading, lest a reset swallow our last words."""
DEAF_LIMIT = 1 << 20
"""Bytes read and dropped on a connection that is being closed."""

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_ONCE = frozenset({b"authorization", b"x-api-key", b"content-type", b"host", b"x-request-id"})
"""Headers of which two would leave open which one counts."""
_JSON = (b"content-type", b"application/json")


class Phase(IntEnum):
    """Where a connection stands, which decides the time limit that applies."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    CLOSING = 4


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
        self.opened = 0

    def sweep(self, now: float) -> None:
        """Close what has been idle, slow or stuck for too long."""
        self.date = _date()
        for connection in tuple(self.open):
            connection.check_time(now)

    def close_idle(self) -> None:
        """Close the connections on which nothing is under way."""
        for connection in tuple(self.open):
            if connection.phase == Phase.IDLE:
                connection.transport.close()


def _date() -> bytes:
    return b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()


class HttpProtocol(asyncio.Protocol):
    """One connection of a caller; also the `Responder` of the message being answered on it."""

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._message: Message | None = None  # being read
        self._upgrading: Message | None = None
        self._pipeline: deque[Message] = deque()  # read, waiting for their turn
        self._answering: Message | None = None
        self._guest: Guest | None = None
        self._body: list[bytes] = []
        self._size = self._head_bytes = self._dropped = 0
        self._last = 0.0
        self._stalled: tuple[float, int] = (0.0, 0)
        self._deaf = False  # what comes from now on is dropped
        self._chunked = self._paused_reading = self._in_turn = False
        self._loose = 0  # parts of the body that are not joined yet
        self._unread = b""  # came with what filled the line
        self._repeated = 0
        self._admitted: Message | None = None  # the first that the read under way completed
        self.slow = False
        self.phase = Phase.IDLE
        self.transport: asyncio.Transport
        self.peer = ""

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = transport  # type: ignore[assignment] - a TCP server makes no other kind
        self.transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else "local"
        self._last = self._server.clock()
        self._server.open.add(self)
        self._server.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See asyncio.Protocol."""
        self._server.open.discard(self)
        self.phase = Phase.CLOSING
        self._drop_body()
        guest, self._guest = self._guest, None
        if guest is not None:
            guest.caller_left()
        for message in (self._answering, *self._pipeline):
            self._release(message)
        self._answering, self._unread = None, b""
        self._pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A caller that shuts its side down counts as gone."""
        if self._deaf:
            self._drop(data)
            return
        self._last = now = self._server.clock()
        message, begins = self._message, False
        if message is None and self._answering is None and not self.slow:
            message = self._server.heads.take(data, now)
            if message is not None:
                self._take_whole(message)
                return
            begins, self._admitted = data.startswith(b"POST "), None
        if message is None or message.chunked or not message.method:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            logger.error("request cannot be read", exc_info=error.__context__)  # noqa: TRY400 - ours is inside
            self._refuse(500, "the gateway failed to read this request")
        except httptools.HttpParserError:
            self._refuse(400, "the request is not well-formed HTTP/1.1")
        else:
            if self._head_bytes > self._server.limits.max_header + MAX_URL:
                self._refuse_head()
            elif begins and self._admitted is not None:
                self._server.heads.learn(data, self._admitted)

    def _feed(self, data: bytes) -> None:
        """Parse, past every wish to speak another protocol: llhttp itself stops at one."""
        at, size = 0, len(data)
        while at < size:
            if at and self._paused_reading and not self._deaf:
                self._unread = data[at:]
                return
            piece = data if not at and size <= _PIECE else data[at : at + _PIECE]
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                at += upgrade.args[0]
                self._no_upgrade()
            else:
                at += len(piece)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.slow = True
        self._stalled = (self._server.clock(), self.transport.get_write_buffer_size())
        if self._guest is not None:
            self._guest.caller_slow()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.slow = False
        if self._guest is not None:
            self._guest.caller_ready()
        self._next()

    # -- httptools callbacks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a message with its first byte, unless we have hung up within this very read."""
        if self._deaf:
            return
        self._message = Message(self._last)
        if self.phase == Phase.IDLE:
            self.phase = Phase.HEAD

    def on_url(self, url: bytes) -> None:
        """Take (a part of) the request target."""
        if self._message is not None:
            self._message.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; trailers are dropped (RFC 9110, 6.5.1)."""
        message = self._message
        if message is None or message.method:
            return
        name, headers = name.lower(), message.headers
        if name not in headers:
            headers[name] = value
        elif name in _ONCE:
            message.refusal = self._word(400, f"more than one {name.decode('latin-1')} header")
        else:
            self._repeated += 1
            if self._repeated <= MAX_HEADERS:
                headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        """Look at the head before any of the body is read."""
        message = self._message
        if message is None:
            return
        parser, headers = self._parser, message.headers
        message.method = parser.get_method().decode("latin-1")
        message.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        message.old = version != "1.1"
        target, _, query = message.target.partition(b"?")
        message.path, message.query = _path(target), query.decode("latin-1")
        length = headers.get(b"content-length")
        if length is not None:
            message.length = int(length)
        message.chunked = b"transfer-encoding" in headers
        self._head_bytes = 0
        if message.old and version != "1.0":
            message.refusal = self._word(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if self._repeated > MAX_HEADERS:
            message.refusal = self._word(431, "the request repeats too many headers")
        self._repeated = 0
        if self.phase == Phase.HEAD:
            self.phase = Phase.BODY
        if message.refusal is None:
            message.refusal = self._check(message) or self._server.host.admit(message)
        if self._admitted is None:
            self._admitted = message
        if message.refusal is not None:
            self._turn_away(message)
        elif b"expect" in headers and self._answering is None and not message.old:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        message = self._message
        if message is None:
            return
        self._size += len(data)
        self._head_bytes = 0
        if message.refusal is not None:
            if self._size > SWALLOW:
                self._hang_up(message)
            return
        if self._size > self._server.limits.max_body:
            message.refusal = self._word(413, self._too_long())
            self._drop_body()
            return
        self._body.append(data)
        self._loose += 1
        if self._loose == _FOLDED:
            self._loose = 0
            self._body[-_FOLDED:] = [b"".join(self._body[-_FOLDED:])]
        if not self._server.host.buffered(len(data)):
            message.refusal = self._word(429, "too much is buffered; try again later")
            self._drop_body()

    def on_message_complete(self) -> None:
        """Hand a whole request on, or line it up behind the one being answered."""
        message, self._message = self._message, None
        if message is None:
            return
        if (message.length or message.chunked) and self._parser.should_upgrade():
            self._upgrading = message  # the parser takes it for done, without its body
            return
        body, self._body, self._size, self._loose = self._body, [], 0, 0
        message.body = body[0] if len(body) == 1 else b"".join(body)
        self._line_up(message)

    def _take_whole(self, message: Message) -> None:
        """Answer a request that came in one read, its head known."""
        limits, size = self._server.limits, len(message.body)
        if size > limits.max_body:
            message.refusal = self._server.host.refuse(413, self._too_long(), message.path)
        if not self._server.host.buffered(size):
            text = "too much is buffered; try again later"
            message.refusal = self._server.host.refuse(429, text, message.path)
        self._answer(message)

    # -- reading ---------------------------------------------------------------------------------

    def _in_head(self) -> bool:
        return self._message is not None and not self._message.method

    def _check(self, message: Message) -> Refusal | None:
        headers, limits = message.headers, self._server.limits
        if len(message.target) > MAX_URL:
            return self._word(414, "the request's URL is too long")
        size = sum(map(len, headers)) + sum(map(len, headers.values()))
        if len(headers) > MAX_HEADERS or size > limits.max_header:
            return self._word(431, "the request has too many or too long headers")
        if (message.length or 0) > limits.max_body:
            return self._word(413, self._too_long())
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            return self._word(415, "send the body without content-encoding")
        if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
            return self._word(417, "only 'expect: 100-continue' is known")
        if message.chunked and message.old:
            return self._word(400, "HTTP/1.0 has no transfer-encoding")
        if message.chunked and headers[b"transfer-encoding"].lower() != b"chunked":
            return self._word(501, "the only transfer-encoding known is chunked")
        return None

    def _too_long(self) -> str:
        return f"the body is longer than {self._server.limits.max_body} bytes (server.max_body)"

    def _word(self, status: int, text: str) -> Refusal:
        message = self._message
        path = "" if message is None else message.path or _path(message.target.partition(b"?")[0])
        return self._server.host.refuse(status, text, path)

    def _turn_away(self, message: Message) -> None:
        """Read a short refused body to its end; hang up on a long or a waiting one."""
        if (message.length or 0) > SWALLOW or b"expect" in message.headers:
            self._hang_up(message)

    def _refuse_head(self) -> None:
        """Refuse headers, or what comes between chunks and after them, that are too long."""
        if self._in_head():
            self._refuse(431, "the request's headers are too long")
        elif self._message is not None:
            self._refuse(400, "the request's chunk extensions or trailers are too long")

    def _refuse(self, status: int, text: str) -> None:
        """Say what was wrong with the bytes that came, and close."""
        if self._deaf:
            return
        message = self._message or Message(self._last)
        message.refusal = self._word(status, text)
        self._hang_up(message)

    def _hang_up(self, message: Message) -> None:
        """Answer with the message's refusal when its turn comes, without reading on, and close."""
        self._message, self._deaf = None, True
        message.keep_alive = False
        self._drop_body()
        self._line_up(message)

    def _no_upgrade(self) -> None:
        """Read on with a parser that has not seen the wish for an upgrade.

        The body of such a request (Java's client asks so by default) is still to come, so the new
        parser is first told how it is framed.
        """
        self._parser = httptools.HttpRequestParser(self)
        message, self._upgrading = self._upgrading, None
        if message is None or self._deaf:
            return
        framing = b"transfer-encoding: chunked"
        if not message.chunked:
            framing = b"content-length: %d" % (message.length or 0)
        self._deaf = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._message, self._deaf = message, False

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > DEAF_LIMIT and not self._paused_reading:
            self._paused_reading = True
            self.transport.pause_reading()

    def _drop_body(self) -> None:
        if self._body:
            self._server.host.buffered(-sum(map(len, self._body)))
            self._body, self._loose = [], 0

    def _line_up(self, message: Message) -> None:
        if self._answering is None and not self.slow and not self._pipeline:
            self._answer(message)
            return
        self._pipeline.append(message)
        full = self.slow or len(self._pipeline) >= MAX_PIPELINED
        if full and not self._paused_reading:
            self._paused_reading = True
            self.transport.pause_reading()

    # -- answering: what a guest may call (see messages.Responder) -------------------------------

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
        self.phase = Phase.ANSWER
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
            if self._answering is message:
                refusal = self._server.host.refuse(500, "the gateway failed", message.path)
                self.send(500, (_JSON, *refusal.headers), refusal.body)
        if self._answering is message:
            self._guest = guest
            if guest is not None and self.slow:
                guest.caller_slow()

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
        self._last = self._server.clock()
        if not message.keep_alive:
            self._close()
        elif self._pipeline:
            self._next()
        elif self._message is None:
            self.phase = Phase.IDLE
        else:
            self.phase = Phase.HEAD if self._in_head() else Phase.BODY

    def _next(self) -> None:
        """Answer what waits in line; a loop, since many may be answered within one read."""
        if self._in_turn:
            return
        self._in_turn = True
        while self.phase != Phase.CLOSING and not self.slow:
            if self._answering is None and self._pipeline:
                self._answer(self._pipeline.popleft())
            elif not self._read_on():
                break
        self._in_turn = False

    def _read_on(self) -> bool:
        """Read again when few requests wait in line; True when some of what came was unread."""
        full = len(self._pipeline) >= MAX_PIPELINED // 2
        if not self._paused_reading or full or self._deaf or self.transport.is_closing():
            return False
        self._paused_reading = False
        data, self._unread = self._unread, b""
        if data:
            self.data_received(data)
        if not self._paused_reading and not self._deaf:
            self.transport.resume_reading()
        return bool(data)

    def _close(self) -> None:
        """Close after what has been written; read on a little if the caller may be sending."""
        if self.phase == Phase.CLOSING:
            return
        self.phase, self._last = Phase.CLOSING, self._server.clock()
        self._stalled = (self._last, self.transport.get_write_buffer_size())
        sending = self._deaf or self._message is not None or bool(self._pipeline)
        self._deaf = True
        self._drop_body()
        if sending and self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:
            self.transport.close()

    def check_time(self, now: float) -> None:
        """Close this connection if it has overstayed."""
        phase, limits, since = self.phase, self._server.limits, now - self._last
        message = self._message
        if self.slow and phase != Phase.CLOSING:
            self._check_stall(now)
        elif phase == Phase.IDLE and since > limits.keep_alive:
            self.transport.close()
        elif phase == Phase.HEAD and message and now - message.received > limits.header_timeout:
            self._refuse(408, "the request's headers did not come in time")
        elif phase == Phase.BODY and since > limits.body_timeout:
            self._refuse(408, "the request's body did not come in time")
        elif phase == Phase.CLOSING:
            self._check_closing(now)

    def _check_closing(self, now: float) -> None:
        """Close for good when all has been sent, or nobody takes it."""
        if self.transport.get_write_buffer_size():
            self._last = now
            self._check_stall(now)
        elif now - self._last > LINGER:
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


def _path(target: bytes) -> str:
    """Normalise a request target to a path; absolute form is allowed (RFC 9112, 3.2.2)."""
    if target.startswith((b"http://", b"https://")):
        target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") > 2 else b"/"
    text = target.decode("latin-1")
    return unquote(text, errors="replace") if "%" in text else text
