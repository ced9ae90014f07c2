"""Reads what was said out of an answer's bytes, whole or streamed, of any route's dialect.

Only for answers that were sampled, and never on a request's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay.gateway.dialects import UNREADABLE
from forebay.gateway.sse import events
from forebay.policies.contracts import Route
from forebay.policies.experiments.answers import Said

if TYPE_CHECKING:
    from collections.abc import Mapping

_decode = msgspec.json.decode
_Any = Any
"""JSON of any shape: whatever has another one than is looked for says nothing."""
MOST = 1 << 20
"""Bytes of an answer that are kept to be read."""


def said_in(route: Route, body: bytes, *, streamed: bool) -> Said:
    """Return the text, finish reason and log probabilities of an answer, as far as it goes."""
    reader = _Reader(route)
    if not streamed:
        reader.read(_object(body))
        return reader.said()
    for _, _, data in events(body):
        if data != b"[DONE]":
            reader.read(_object(data))
    return reader.said()


def _object(data: bytes) -> dict[str, Any]:
    try:
        found: Any = _decode(data)
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}  # type: ignore[reportUnknownVariableType]  # any JSON


class _Reader:
    """Gathers what one answer's objects say."""

    def __init__(self, route: Route) -> None:
        self._look = {
            Route.MESSAGES: self._anthropic,
            Route.RESPONSES: self._responses,
        }.get(route, self._openai)
        self._text: list[str] = []
        self._finish = ""
        self._logprobs: list[float] = []

    def said(self) -> Said:
        """Return what was said."""
        return Said("".join(self._text), self._finish, tuple(self._logprobs))

    def read(self, found: dict[str, Any]) -> None:
        """Read one object; whatever has another shape says nothing."""
        try:
            self._look(found)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError, OverflowError):
            return

    def _say(self, text: object) -> None:
        if isinstance(text, str):
            self._text.append(text)

    def _openai(self, found: _Any) -> None:
        choice: _Any = _first(found.get("choices"))
        message: _Any = choice.get("delta") or choice.get("message") or {}
        self._say(message.get("content") or choice.get("text"))
        for call in message.get("tool_calls") or ():
            function: _Any = call.get("function") or {}
            self._say(function.get("name"))
            self._say(function.get("arguments"))
        self._end(choice.get("finish_reason"))
        told: _Any = choice.get("logprobs") or {}
        each: _Any
        for each in told.get("content") or ():
            self._logprobs.append(float(each["logprob"]))

    def _anthropic(self, found: _Any) -> None:
        block: _Any
        for block in found.get("content") or ():
            self._say(block.get("text"))
        delta: _Any = found.get("delta") or {}
        self._say(delta.get("text"))
        self._end(delta.get("stop_reason") or found.get("stop_reason"))

    def _responses(self, found: _Any) -> None:
        if found.get("type") == "response.output_text.delta":
            self._say(found.get("delta"))
        item: _Any
        for item in found.get("output") or ():
            part: _Any
            for part in item.get("content") or ():
                self._say(part.get("text"))
        self._end(found.get("status"))

    def _end(self, reason: object) -> None:
        if isinstance(reason, str) and reason:
            self._finish = reason


def _first(choices: Any) -> _Any:
    return choices[0] if choices else {}


def asks_json(members: Mapping[str, msgspec.Raw]) -> bool:
    """Tell whether a request asks for JSON, as OpenAI's routes do."""
    raw = members.get("response_format")
    # A tuple, since what a caller sends may have no hash.
    return raw is not None and _object(bytes(raw)).get("type") in ("json_object", "json_schema")
