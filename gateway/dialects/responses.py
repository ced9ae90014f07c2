"""OpenAI Responses: named events, the whole response in the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import error_of, learn
from .openai import openai_error
from .shapes import UNREADABLE, encode, read_response, read_response_event

if TYPE_CHECKING:
    from forebay.policies.contracts import ForebayError

    from .base import Seen
    from .shapes import Response


class Responses:
    """OpenAI Responses: named events, the whole response in the last one."""

    marks: tuple[bytes, ...] = (
        b"response.completed",
        b"response.failed",
        b"response.incomplete",
        b"event: error",
        b'"type":"error"',
    )
    _ends = frozenset({"response.completed", "response.failed", "response.incomplete"})

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """See `Dialect.look`."""
        if data == b"[DONE]":
            return
        try:
            read = read_response_event(data)
        except UNREADABLE:
            seen.error |= event == b"error"
            return
        kind = read.type or event.decode("ascii", "replace")
        if kind in self._ends:
            seen.done = True
            seen.finish_reason = kind.removeprefix("response.")
        elif kind == "error":
            seen.error = True
        elif kind.endswith(".delta"):
            seen.token = True
        if read.response is not None:
            self._take(read.response, seen)

    def read(self, answer: bytes, seen: Seen) -> None:
        """See `Dialect.read`."""
        try:
            response = read_response(answer)
        except UNREADABLE:
            return
        seen.finish_reason = response.status or ""
        seen.token = bool(response.output)
        self._take(response, seen)

    @staticmethod
    def _take(response: Response, seen: Seen) -> None:
        if isinstance(response.id, str):
            seen.id = response.id
        if response.usage is not None:
            learn(response.usage, seen)

    def shaped(self, body: bytes) -> bool:
        """See `Dialect.shaped`."""
        return error_of(body) is not None

    def body(self, error: ForebayError) -> bytes:
        """See `Dialect.body`."""
        return encode({"error": openai_error(error)})

    def event(self, error: ForebayError) -> bytes:
        """See `Dialect.event`."""
        said = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "sequence_number": 0,
        }
        return b"event: error\ndata: %b\n\n" % encode(said)
