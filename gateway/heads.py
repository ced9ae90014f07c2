"""Heads of requests that have been read before, word for word but for their length.

A caller sends the same head again and again; only content-length changes. One that was read, found
good and admitted is remembered, and a later request that begins with the same bytes is taken as it
is, without parsing, hashing its key or looking up its route: a quarter of what a request costs.
Whatever is not plainly the same goes the ordinary way. Forgotten when the configuration changes,
and when the key in it expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .messages import Message

if TYPE_CHECKING:
    from typing import Final

MOST: Final = 1024
LONGEST: Final = 4096
"""Bytes of a head that is worth remembering."""
_MARK = b"ength: "
"""The end of `content-length: ` in any usual spelling."""
_CHANGING = (b"traceparent", b"tracestate", b"x-request-id", b"expect", b"upgrade")
"""Headers that are different each time, or that need the parser's care."""


class KnownHeads:
    """Remembers admitted heads of POST requests with a plain content-length."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, Message] = {}

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._heads)

    def clear(self) -> None:
        """Forget all: keys or routes may have changed."""
        self._heads.clear()

    def take(self, data: bytes, now: float) -> Message | None:
        """Return the message when `data` is exactly one request with a known head, else None."""
        at = data.find(_MARK, 0, LONGEST) + 7
        if at == 6:
            return None
        stop = data.find(b"\r\n", at)
        end = data.find(b"\r\n\r\n", stop)
        if end < 0:  # cut: a slice from past its end raises where this is compiled
            return None
        known = self._heads.get(data[:at] + data[stop:end])
        if known is None or known.until <= now:
            return None
        digits, body = data[at:stop], data[end + 4 :]
        if not digits.isdigit() or len(digits) > 9 or int(digits) != len(body):
            return None
        message = Message(now)
        message.method = "POST"
        message.target = known.target
        message.path = known.path
        message.query = known.query
        message.headers = known.headers
        message.keep_alive = known.keep_alive
        message.tenant = known.tenant
        message.until = known.until
        message.length = len(body)
        message.body = body
        return message

    def learn(self, data: bytes, message: Message) -> None:
        """Remember the head that `data` begins with; `message` is what the parser made of it."""
        at = data.find(_MARK) + 7
        stop = data.find(b"\r\n", at)
        end = data.find(b"\r\n\r\n", stop)
        headers = message.headers
        if (
            not 17 <= at <= stop <= end <= LONGEST
            or message.old
            or message.chunked
            or message.refusal is not None
            or message.until <= message.received
            or data.find(b"\r\n\r\n") != end  # else the mark is in a body, or in another head
            or data.count(_MARK, 0, end) != 1
            or data[at - 17 : at].lower() != b"\ncontent-length: "
            or headers.get(b"content-length") != data[at:stop]
            or any(name in headers for name in _CHANGING)
        ):
            return
        if len(self._heads) >= MOST:
            self._heads.clear()
        self._heads[data[:at] + data[stop:end]] = message
