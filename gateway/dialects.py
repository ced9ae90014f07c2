"""The three ways in which a route speaks: OpenAI, Anthropic Messages, OpenAI Responses.

A dialect knows how an answer ends, where its tokens and usage stand, and how an error is said, as a
body or inside a stream. Sources: OpenAI API reference (2025), Anthropic Messages API 2023-06-01.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from forebay.policies.contracts import Route

if TYPE_CHECKING:
    from forebay.policies.contracts import ForebayError


class Seen:
    """What has been learnt from one answer. None: not said."""

    __slots__ = (
        "cached_tokens",
        "done",
        "error",
        "finish_reason",
        "id",
        "output_tokens",
        "prompt_tokens",
        "token",
    )

    def __init__(self) -> None:
        self.done = False
        """The route's end mark has come."""
        self.error = False
        """The engine has sent an error event of its own."""
        self.token = False
        """The first output token has come."""
        self.id = ""
        self.finish_reason = ""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None


class Dialect(Protocol):
    """How one family of routes speaks."""

    marks: tuple[bytes, ...]
    """An event without any of these tells nothing once the first token has come."""
    lines_per_event: int

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """Learn from one event of a stream; `event` is empty when it has no name."""
        ...

    def read(self, answer: bytes, seen: Seen) -> None:
        """Learn from a whole answer."""
        ...

    def shaped(self, body: bytes) -> bool:
        """Tell whether an engine's error body already has this dialect's shape."""
        ...

    def body(self, error: ForebayError) -> bytes:
        """Say an error as a response body."""
        ...

    def event(self, error: ForebayError) -> bytes:
        """Say an error inside a stream."""
        ...


class _Error(msgspec.Struct):
    error: dict[str, Any]
    type: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    type: Any = None
    delta: Any = None


class _Response(msgspec.Struct):
    id: Any = None
    status: str | None = None
    output: Any = None
    usage: _Usage | None = None


class _ResponsesEvent(msgspec.Struct):
    type: str | None = None
    response: _Response | None = None


class _AnthropicDelta(msgspec.Struct):
    stop_reason: str | None = None


class _AnthropicMessage(msgspec.Struct):
    id: Any = None
    content: Any = None
    usage: _Usage | None = None
    stop_reason: str | None = None


class _AnthropicEvent(msgspec.Struct):
    type: str | None = None
    message: _AnthropicMessage | None = None
    delta: _AnthropicDelta | None = None
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode
_response = msgspec.json.Decoder(_Response).decode
_responses_event = msgspec.json.Decoder(_ResponsesEvent).decode
_message = msgspec.json.Decoder(_AnthropicMessage).decode
_anthropic_event = msgspec.json.Decoder(_AnthropicEvent).decode
_error = msgspec.json.Decoder(_Error).decode
_encode = msgspec.json.encode


def _error_of(body: bytes) -> _Error | None:
    try:
        return _error(body)
    except msgspec.MsgspecError:
        return None


def _learn(usage: _Usage, seen: Seen) -> None:
    """Take over what is said; a later event may say only part."""
    if usage.prompt_tokens is not None:
        seen.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        seen.output_tokens = usage.completion_tokens
    if usage.input_tokens is not None:
        seen.prompt_tokens = (
            usage.input_tokens
            + (usage.cache_read_input_tokens or 0)
            + (usage.cache_creation_input_tokens or 0)
        )
    if usage.output_tokens is not None:
        seen.output_tokens = usage.output_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    if details is not None and details.cached_tokens is not None:
        seen.cached_tokens = details.cached_tokens
    if usage.cache_read_input_tokens is not None:
        seen.cached_tokens = usage.cache_read_input_tokens


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
    lines_per_event = 2

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """See `Dialect.look`."""
        if data == b"[DONE]":
            seen.done = True
            return
        try:
            chunk = _chunk(data)
        except msgspec.MsgspecError:
            seen.error |= event == b"error"
            return
        if chunk.error is not None or event == b"error":
            seen.error = True
        if chunk.usage is not None:
            _learn(chunk.usage, seen)
        seen.done |= chunk.type == "transcript.text.done"
        seen.token |= bool(chunk.type and chunk.delta)
        for choice in chunk.choices or ():
            if choice.finish_reason:
                seen.finish_reason = choice.finish_reason
            seen.token |= bool(choice.text) or _speaks(choice.delta)

    def read(self, answer: bytes, seen: Seen) -> None:
        """See `Dialect.read`."""
        try:
            chunk = _chunk(answer)
        except msgspec.MsgspecError:
            return
        if isinstance(chunk.id, str):
            seen.id = chunk.id
        if chunk.usage is not None:
            _learn(chunk.usage, seen)
        for choice in chunk.choices or ():
            seen.finish_reason = choice.finish_reason or seen.finish_reason
            seen.token |= bool(choice.text) or _speaks(choice.message)

    def shaped(self, body: bytes) -> bool:
        """See `Dialect.shaped`."""
        return _error_of(body) is not None

    def body(self, error: ForebayError) -> bytes:
        """See `Dialect.body`."""
        return _encode({"error": _openai_error(error)})

    def event(self, error: ForebayError) -> bytes:
        """See `Dialect.event`."""
        return b"data: %b\n\n" % _encode({"error": _openai_error(error)})


def _speaks(delta: _Delta | None) -> bool:
    return delta is not None and bool(
        delta.content
        or delta.reasoning
        or delta.reasoning_content
        or delta.tool_calls
        or delta.refusal
    )


def _openai_error(error: ForebayError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }


_ANTHROPIC_TYPES = {
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
    lines_per_event = 3

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """See `Dialect.look`."""
        try:
            read = _anthropic_event(data)
        except msgspec.MsgspecError:
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
            _learn(read.message.usage, seen)
        if read.usage is not None:
            _learn(read.usage, seen)
        if read.delta is not None and read.delta.stop_reason:
            seen.finish_reason = read.delta.stop_reason

    def read(self, answer: bytes, seen: Seen) -> None:
        """See `Dialect.read`."""
        try:
            message = _message(answer)
        except msgspec.MsgspecError:
            return
        if message.usage is not None:
            _learn(message.usage, seen)
        seen.finish_reason = message.stop_reason or ""
        seen.token = bool(message.content)

    def shaped(self, body: bytes) -> bool:
        """See `Dialect.shaped`."""
        error = _error_of(body)
        return error is not None and error.type == "error"

    def body(self, error: ForebayError) -> bytes:
        """See `Dialect.body`."""
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return _encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def event(self, error: ForebayError) -> bytes:
        """See `Dialect.event`."""
        return b"event: error\ndata: %b\n\n" % self.body(error)


class Responses:
    """OpenAI Responses: named events, the whole response in the last one."""

    marks: tuple[bytes, ...] = (
        b"response.completed",
        b"response.failed",
        b"response.incomplete",
        b"event: error",
        b'"type":"error"',
    )
    lines_per_event = 3
    _ends = frozenset({"response.completed", "response.failed", "response.incomplete"})

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """See `Dialect.look`."""
        if data == b"[DONE]":
            return
        try:
            read = _responses_event(data)
        except msgspec.MsgspecError:
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
            response = _response(answer)
        except msgspec.MsgspecError:
            return
        seen.finish_reason = response.status or ""
        seen.token = bool(response.output)
        self._take(response, seen)

    @staticmethod
    def _take(response: _Response, seen: Seen) -> None:
        if isinstance(response.id, str):
            seen.id = response.id
        if response.usage is not None:
            _learn(response.usage, seen)

    def shaped(self, body: bytes) -> bool:
        """See `Dialect.shaped`."""
        return _error_of(body) is not None

    def body(self, error: ForebayError) -> bytes:
        """See `Dialect.body`."""
        return _encode({"error": _openai_error(error)})

    def event(self, error: ForebayError) -> bytes:
        """See `Dialect.event`."""
        said = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "sequence_number": 0,
        }
        return b"event: error\ndata: %b\n\n" % _encode(said)


OPENAI = OpenAI()
ANTHROPIC = Anthropic()
RESPONSES = Responses()

_DIALECTS: dict[Route, Dialect] = {
    Route.MESSAGES: ANTHROPIC,
    Route.COUNT_TOKENS: ANTHROPIC,
    Route.RESPONSES: RESPONSES,
}


def dialect_of(route: Route) -> Dialect:
    """Return how a route speaks."""
    return _DIALECTS.get(route, OPENAI)


def dialect_of_path(path: str) -> Dialect:
    """Return how a path speaks that may be no route at all: errors are said in it."""
    if path.startswith(Route.MESSAGES):
        return ANTHROPIC
    return RESPONSES if path.startswith(Route.RESPONSES) else OPENAI
