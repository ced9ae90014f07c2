"""From the bytes of one connection to messages.

A `Reader` is what the parser calls. Syntax is llhttp's (strict): conflicting lengths, bare line
feeds in headers and the like never get past it; what it takes and we do not is refused on top. The
host is asked about a head before any of its body is read, so that a refusal saves reading it.

A refused message is handed on as any other, with its refusal in it: it is answered in its turn.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import httptools

from .messages import Message

if TYPE_CHECKING:
    from .connections import Connections
    from .messages import Refusal

logger = logging.getLogger(__name__)

MAX_URL = 8192
MAX_HEADERS = 100
SWALLOW = 64 << 10
"""A refused body up to this long is read and dropped, so that the connection can be kept."""

_PIECE = 16 << 10
"""Of one read this much is parsed at a time: it may hold thousands of requests."""
_FOLDED = 1024
"""Parts of a body that are joined to one: an object for two bytes weighs 30 times as much."""
_WORTH_IT = 512
"""Bytes of a part up to which they are; of larger ones the object is no weight, and a copy is."""
_ONCE = frozenset({b"authorization", b"x-api-key", b"content-type", b"host", b"x-request-id"})
"""Headers of which two would leave open which one counts."""
_TOO_MUCH = "too much is buffered; try again later"


class Line(Protocol):
    """Where messages go: they are answered in the order they were read."""

    paused: bool
    """No more is to be read now, though more may have come."""

    def line_up(self, message: Message) -> None:
        """Answer a whole message when its turn comes."""
        ...

    def ask_for_body(self) -> None:
        """Tell a caller that waits for it to go on with its body."""
        ...


class Reader:
    """Reads one connection."""

    def __init__(self, server: Connections, line: Line) -> None:
        self.message: Message | None = None
        """What is being read."""
        self.deaf = False
        """What comes from now on is not to be read any more."""
        self.unread = b""
        """What had come already when the line was paused."""
        self._server = server
        self._line = line
        self._parser = httptools.HttpRequestParser(self)
        self._now = 0.0
        self._body: list[bytes] = []
        self._loose = 0  # parts of the body that are not joined yet
        self._size = self._head_bytes = self._repeated = 0
        self._upgrading: Message | None = None
        self._admitted: Message | None = None  # the first that the read under way completed

    @property
    def in_head(self) -> bool:
        """A head is being read."""
        return self.message is not None and not self.message.method

    def read(self, data: bytes, now: float, *, alone: bool) -> None:
        """Take what came; `alone`: nothing is in the way of a message's being answered at once."""
        self._now = now
        message, begins = self.message, False
        if message is None and alone:
            known = self._server.heads.take(data, now)
            if known is not None:
                self._take_whole(known)
                return
            begins, self._admitted = data.startswith(b"POST "), None
        if message is None or message.chunked or not message.method:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            logger.error("request cannot be read", exc_info=error.__context__)  # noqa: TRY400 - ours is inside
            self.refuse(500, "the gateway failed to read this request")
        except httptools.HttpParserError:
            self.refuse(400, "the request is not well-formed HTTP/1.1")
        else:
            if self._head_bytes > self._server.limits.max_header + MAX_URL:
                self._refuse_head()
            elif begins and self._admitted is not None:
                self._server.heads.learn(data, self._admitted)

    def refuse(self, status: int, text: str) -> None:
        """Say what was wrong with the bytes that came, and close."""
        if self.deaf:
            return
        message = self.message or Message(self._now)
        message.refusal = self._word(status, text)
        self._hang_up(message)

    def stop(self) -> None:
        """Read no more, and give back the memory of what was begun."""
        self.deaf, self.unread = True, b""
        self._drop_body()

    def _drop_body(self) -> None:
        if self._body:
            self._server.host.buffered(-sum(map(len, self._body)))
            self._body, self._loose = [], 0

    def _take_whole(self, message: Message) -> None:
        """Hand on a request that came in one read, its head known."""
        size = len(message.body)
        if size > self._server.limits.max_body:
            message.refusal = self._server.host.refuse(413, self._too_long(), message.path)
        if not self._server.host.buffered(size):
            message.refusal = self._server.host.refuse(429, _TOO_MUCH, message.path)
        self._line.line_up(message)

    def _feed(self, data: bytes) -> None:
        """Parse, past every wish to speak another protocol: llhttp itself stops at one."""
        at, size = 0, len(data)
        while at < size:
            if at and self._line.paused and not self.deaf:
                self.unread = data[at:]
                return
            piece = data if not at and size <= _PIECE else data[at : at + _PIECE]
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                at += upgrade.args[0]
                self._no_upgrade()
            else:
                at += len(piece)

    def _no_upgrade(self) -> None:
        """Read on with a parser that has not seen the wish for an upgrade.

        The body of such a request (Java's client asks so by default) is still to come, so the new
        parser is first told how it is framed.
        """
        self._parser = httptools.HttpRequestParser(self)
        message, self._upgrading = self._upgrading, None
        if message is None or self.deaf:
            return
        framing = b"transfer-encoding: chunked"
        if not message.chunked:
            framing = b"content-length: %d" % (message.length or 0)
        self.deaf = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self.message, self.deaf = message, False

    # -- httptools callbacks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a message with its first byte, unless we have hung up within this very read."""
        if not self.deaf:
            self.message = Message(self._now)

    def on_url(self, url: bytes) -> None:
        """Take (a part of) the request target."""
        if self.message is not None:
            self.message.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; trailers are dropped (RFC 9110, 6.5.1)."""
        message = self.message
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
        message = self.message
        if message is None:
            return
        self._complete_head(message)
        if message.refusal is None:
            message.refusal = self._check(message) or self._server.host.admit(message)
        if self._admitted is None:
            self._admitted = message
        if message.refusal is not None:
            self._turn_away(message)
        elif b"expect" in message.headers and not message.old:
            self._line.ask_for_body()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        message = self.message
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
            if sum(map(len, self._body[-_FOLDED:])) < _FOLDED * _WORTH_IT:
                self._body[-_FOLDED:] = [b"".join(self._body[-_FOLDED:])]
        if not self._server.host.buffered(len(data)):
            message.refusal = self._word(429, _TOO_MUCH)
            self._drop_body()

    def on_message_complete(self) -> None:
        """Hand a whole request on."""
        message, self.message = self.message, None
        if message is None:
            return
        if (message.length or message.chunked) and self._parser.should_upgrade():
            self._upgrading = message  # the parser takes it for done, without its body
            return
        body, self._body, self._size, self._loose = self._body, [], 0, 0
        message.body = body[0] if len(body) == 1 else b"".join(body)
        self._line.line_up(message)

    # -- judging ---------------------------------------------------------------------------------

    def _complete_head(self, message: Message) -> None:
        """Fill in what the parser knows of a head."""
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
        if message.old and version != "1.0":
            message.refusal = self._word(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if self._repeated > MAX_HEADERS:
            message.refusal = self._word(431, "the request repeats too many headers")
        self._head_bytes = self._repeated = 0

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
        message = self.message
        path = "" if message is None else message.path or _path(message.target.partition(b"?")[0])
        return self._server.host.refuse(status, text, path)

    def _turn_away(self, message: Message) -> None:
        """Read a short refused body to its end; hang up on a long or a waiting one."""
        if (message.length or 0) > SWALLOW or b"expect" in message.headers:
            self._hang_up(message)

    def _refuse_head(self) -> None:
        """Refuse headers, or what comes between chunks and after them, that are too long."""
        if self.in_head:
            self.refuse(431, "the request's headers are too long")
        elif self.message is not None:
            self.refuse(400, "the request's chunk extensions or trailers are too long")

    def _hang_up(self, message: Message) -> None:
        """Hand on a refused message as the last: no more is read, and its answer closes."""
        self.message = None
        message.keep_alive = False
        self.stop()
        self._line.line_up(message)


def _path(target: bytes) -> str:
    """Normalise a request target to a path; absolute form is allowed (RFC 9112, 3.2.2)."""
    if target.startswith((b"http://", b"https://")):
        target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") > 2 else b"/"
    text = target.decode("latin-1")
    return unquote(text, errors="replace") if "%" in text else text
