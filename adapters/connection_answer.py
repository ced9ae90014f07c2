"""One answer of an engine as its bytes come: framing, limits, and what is no HTTP/1.1.

No I/O here. llhttp does the parsing; what it takes and we do not (other protocols' names, a body
coded twice, HTTP/2 in words, interim answers without end) is refused on top. Whatever is wrong is a
*fault*, told in words that never hold the engine's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

if TYPE_CHECKING:
    from .base import Headers

_MAX_INTERIM = 16
"""More 1xx answers than this are a fault."""
_H = ord("H")
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


_DROPPED = HttpResponseParser(object())
"""In the place of a parser that is no more wanted."""


class _MalformedError(Exception):
    """Raised inside the parser's callbacks, to stop it."""


class Answer:
    """Parses the answers on one connection, one after the other.

    `status` is 0 until the head is whole; `parts` gathers what the last reads held of the body, for
    the reader to take; after `complete`, `keep` says whether the connection may be used again.
    """

    __slots__ = (
        "_barren",
        "_chunked",
        "_head_bytes",
        "_interim",
        "_is_head",
        "_max_head",
        "_parser",
        "complete",
        "headers",
        "heard",
        "keep",
        "on_body",
        "parts",
        "status",
    )

    def __init__(self, *, max_head: int) -> None:
        self._max_head = max_head
        self.parts: list[bytes] = []
        # What the parser calls for each chunk: a bound C method costs half of one in Python.
        self.on_body = self.parts.append
        self.begin(is_head=False)
        self._parser = HttpResponseParser(self)

    def begin(self, *, is_head: bool) -> None:
        """Expect the next answer, to a HEAD request or to another."""
        self._is_head = is_head
        self.parts.clear()  # a sink that closed in on_head left the body here
        self.heard = False
        self.complete = False
        self.keep = False
        self.status = 0
        self.headers: Headers = []
        self._chunked = False
        self._interim = 0
        self._head_bytes = 0
        self._barren = 0

    def feed(self, data: bytes) -> str | None:
        """Parse what was read and return the fault in it; what came before a fault is good."""
        fault = None
        try:
            if self.status:
                self._feed_body(data)
            else:
                self._feed_head(data)
        except (HttpParserError, HttpParserUpgrade, _MalformedError) as error:
            fault = _told(error)
        if self.complete and (fault is not None or not self._ends_clean(data)):
            self.keep = False
        return fault

    def ends_with_connection(self) -> bool:
        """Say whether nothing but the end of input marks the end of this answer."""
        return self.status != 0 and not any(name in _FRAMING for name, _ in self.headers)

    def drop(self) -> None:
        """Parse no more. Parser and answer refer to each other, which would outlive the socket."""
        self._parser = _DROPPED

    def _feed_body(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self.parts or self.complete:
            self._barren = 0
            return
        self._barren += len(data)
        if self._barren > self._max_head:
            raise _MalformedError(f"over {self._max_head} bytes of chunk heads or trailers")

    def _feed_head(self, data: bytes) -> None:
        """Feed what may hold the head, of which not a byte over the limit reaches the parser."""
        if not self.heard:
            self.heard = True
            if data[0] != _H:  # the parser would skip empty lines, and take RTSP and ICE for HTTP
                raise _MalformedError("the answer does not begin with HTTP/")
        room = self._max_head - self._head_bytes
        self._head_bytes += len(data)
        self._parser.feed_data(data[:room])
        if len(data) <= room:
            return
        if not self.status:
            raise _MalformedError(f"the answer's head is over {self._max_head} bytes")
        self._parser.feed_data(data[room:])

    def _ends_clean(self, data: bytes) -> bool:
        """Say whether the answer ends where the data ends.

        The parser finds whatever follows but for CR and LF, which it skips.
        """
        if self.parts and not self._chunked:
            last = self.parts[-1]
            return data.endswith(last) and not last.isspace()
        return data.endswith(b"\r\n\r\n") and data[-5:-4] not in (b"\r", b"\n", b"")

    def on_message_begin(self) -> None:
        """Begin a head, of an interim answer or of the answer."""
        if self.complete:
            raise _MalformedError("more than one answer")
        self.headers = []
        self._chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which come after the head, are dropped."""
        if self.status:
            return
        name = name.lower()
        if name == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                raise _MalformedError("a transfer-encoding other than chunked")
            self._chunked = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise _MalformedError("an encoded body, although identity was asked for")
        self.headers.append((name, value))

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
        self.status = status
        if self._is_head:
            self.complete = True  # whatever its headers promise, no body follows
        else:
            self.keep = parser.should_keep_alive()

    def _count_interim(self, status: int) -> None:
        self._interim += 1
        if status == 101:
            raise _MalformedError("an upgrade that was not asked for")
        if self._interim > _MAX_INTERIM:
            raise _MalformedError(f"over {_MAX_INTERIM} interim answers")

    def on_message_complete(self) -> None:
        """Note the end of the answer; an interim one does not count."""
        if self.status:
            self.complete = True


def _told(error: Exception) -> str:
    """Say what the parser, or our callback that stopped it, found: never the engine's bytes."""
    if isinstance(error, HttpParserUpgrade):
        return "an upgrade that was not asked for"
    return str(error.__context__ or error).lower()
