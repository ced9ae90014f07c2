"""Anthropic Messages: named events, usage at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import error_of, learn
from .shapes import UNREADABLE, encode, read_message, read_message_event

if TYPE_CHECKING:
    from forebay.policies.contracts import ForebayError

    from .base import Seen


_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Anthropic:
    """Messages: named events, usage at both ends."""

    marks: tuple[bytes, ...] = (
        b"message_stop",
        b"message_delta",
        b"event: error",
        b'"type":"error"',
    )

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """See `Dialect.look`."""
        try:
            read = read_message_event(data)
        except UNREADABLE:
            seen.error |= event == b"error"
            return
        kind = read.type or event.decode("ascii", "replace")
        if kind == "message_stop":
            seen.done = True
        elif kind == "error":
            seen.error = True
        elif kind == "content_block_delta":
            seen.token = True
        if read.message is not None and read.message.usage is not None:
            learn(read.message.usage, seen)
        if read.usage is not None:
            learn(read.usage, seen)
        if read.delta is not None and read.delta.stop_reason:
            seen.finish_reason = read.delta.stop_reason

    def read(self, answer: bytes, seen: Seen) -> None:
        """See `Dialect.read`."""
        try:
            message = read_message(answer)
        except UNREADABLE:
            return
        if message.usage is not None:
            learn(message.usage, seen)
        seen.finish_reason = message.stop_reason or ""
        seen.token = bool(message.content)

    def shaped(self, body: bytes) -> bool:
        """See `Dialect.shaped`."""
        error = error_of(body)
        return error is not None and error.type == "error"

    def body(self, error: ForebayError) -> bytes:
        """See `Dialect.body`."""
        kind = _TYPE_OF_STATUS.get(error.status, "api_error")
        return encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def event(self, error: ForebayError) -> bytes:
        """See `Dialect.event`."""
        return b"event: error\ndata: %b\n\n" % self.body(error)
