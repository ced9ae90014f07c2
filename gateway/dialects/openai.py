"""OpenAI's first shapes: a stream of chunks with choices, ended by `[DONE]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import error_of, learn
from .shapes import UNREADABLE, encode, read_chunk

if TYPE_CHECKING:
    from forebay.policies.contracts import ForebayError

    from .base import Seen
    from .shapes import Delta


class OpenAI:
    """Chat, completions, embeddings and whatever else answers in OpenAI's first shapes."""

    marks: tuple[bytes, ...] = (
        b'"finish_reason":"',
        b'"usage":{',
        b'{"error"',
        b"[DONE]",
        b'": {',
        b'_reason": "',
    )

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """See `Dialect.look`."""
        if data == b"[DONE]":
            seen.done = True
            return
        try:
            chunk = read_chunk(data)
        except UNREADABLE:
            seen.error |= event == b"error"
            return
        if chunk.error is not None or event == b"error":
            seen.error = True
        if chunk.usage is not None:
            learn(chunk.usage, seen)
        seen.done |= chunk.type == "transcript.text.done"
        seen.token |= bool(chunk.type and chunk.delta)
        for choice in chunk.choices or ():
            if choice.finish_reason:
                seen.finish_reason = choice.finish_reason
            seen.token |= bool(choice.text) or _speaks(choice.delta)

    def read(self, answer: bytes, seen: Seen) -> None:
        """See `Dialect.read`."""
        try:
            chunk = read_chunk(answer)
        except UNREADABLE:
            return
        if isinstance(chunk.id, str):
            seen.id = chunk.id
        if chunk.usage is not None:
            learn(chunk.usage, seen)
        for choice in chunk.choices or ():
            seen.finish_reason = choice.finish_reason or seen.finish_reason
            seen.token |= bool(choice.text) or _speaks(choice.message)

    def shaped(self, body: bytes) -> bool:
        """See `Dialect.shaped`."""
        return error_of(body) is not None

    def body(self, error: ForebayError) -> bytes:
        """See `Dialect.body`."""
        return encode({"error": openai_error(error)})

    def event(self, error: ForebayError) -> bytes:
        """See `Dialect.event`."""
        return b"data: %b\n\n" % encode({"error": openai_error(error)})


def _speaks(delta: Delta | None) -> bool:
    return delta is not None and bool(
        delta.content
        or delta.reasoning
        or delta.reasoning_content
        or delta.tool_calls
        or delta.refusal
    )


def openai_error(error: ForebayError) -> dict[str, Any]:
    """Return what stands under `error` in a body."""
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
