"""The members of answers that are read, dialect by dialect; what is not named here is skipped.

On their own, since msgspec's classes cannot be compiled, and what reads them can (hatch_build.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

encode = msgspec.json.encode
UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""What reading an answer raises: it is no JSON, of another shape, or nested too deeply."""


class ErrorBody(msgspec.Struct):
    """What both shapes of an error's body have; `type` is Anthropic's."""

    error: dict[str, Any]
    type: str | None = None


class Details(msgspec.Struct):
    """Of a prompt's tokens."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Usage in any of the three shapes: their names overlap, and mean the same where they do."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Delta(msgspec.Struct):
    """OpenAI: what is said, in a message or in a part of one."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None


class Choice(msgspec.Struct):
    """OpenAI: one of the answers."""

    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """OpenAI: an answer, or a part of one."""

    id: Any = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    type: Any = None
    delta: Any = None


class Bare(msgspec.Struct):
    """OpenAI: what tells a chunk that has nothing but usage."""

    choices: list[Any] | None = None
    usage: dict[str, Any] | None = None


class Message(msgspec.Struct):
    """Anthropic: an answer."""

    id: Any = None
    content: Any = None
    usage: Usage | None = None
    stop_reason: str | None = None


class MessageDelta(msgspec.Struct):
    """Anthropic: what became of a message."""

    stop_reason: str | None = None


class MessageEvent(msgspec.Struct):
    """Anthropic: one event of a stream."""

    type: str | None = None
    message: Message | None = None
    delta: MessageDelta | None = None
    usage: Usage | None = None


class Response(msgspec.Struct):
    """OpenAI Responses: an answer."""

    id: Any = None
    status: str | None = None
    output: Any = None
    usage: Usage | None = None


class ResponseEvent(msgspec.Struct):
    """OpenAI Responses: one event of a stream."""

    type: str | None = None
    response: Response | None = None


read_error = msgspec.json.Decoder(ErrorBody).decode
read_chunk = msgspec.json.Decoder(Chunk).decode
read_bare = msgspec.json.Decoder(Bare).decode
read_message = msgspec.json.Decoder(Message).decode
read_message_event = msgspec.json.Decoder(MessageEvent).decode
read_response = msgspec.json.Decoder(Response).decode
read_response_event = msgspec.json.Decoder(ResponseEvent).decode
