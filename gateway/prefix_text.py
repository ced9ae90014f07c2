"""A prompt as one text that is equal where the model would see the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay.policies.contracts import Route

if TYPE_CHECKING:
    from .intake import AnyBody

_CONVERSATIONS = frozenset({Route.CHAT, Route.MESSAGES, Route.RESPONSES})
_END = b"\x1e"


def prompt_text(route: Route, body: AnyBody) -> bytes:
    """Write a prompt as one text that is equal where the model would see the same.

    Key order and white space of the JSON do not count; what an image is called does.
    """
    if route in _CONVERSATIONS:
        pieces: list[bytes] = []
        for name in ("system", "instructions", "tools"):
            if name in body.members:
                pieces += (_canonical(body.get(name)), _END)
        said = body.get("input" if route is Route.RESPONSES else "messages")
        if isinstance(said, list):
            for message in said:  # type: ignore[reportUnknownVariableType] - any JSON
                _write(message, pieces)
        elif said is not None:
            pieces.append(_canonical(said))
        return b"".join(pieces)
    if route is not Route.COMPLETIONS:
        return b""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[reportUnknownVariableType] - any JSON
    return b"" if prompt is None else _canonical(prompt)


def _write(message: Any, pieces: list[bytes]) -> None:
    """Write one message: who speaks, what is said, what is called."""
    if not isinstance(message, dict):
        pieces += (_canonical(message), _END)
        return
    role, content = message.get("role"), message.get("content")  # type: ignore[reportUnknownVariableType, reportUnknownMemberType] - any JSON
    pieces += (str(role).encode("utf-8", "replace"), b"\x1f", _canonical(content))  # type: ignore[reportUnknownArgumentType] - JSON
    rest = {k: v for k, v in message.items() if k not in ("role", "content")}  # type: ignore[reportUnknownVariableType] - JSON
    if rest:
        pieces.append(_canonical(rest))
    pieces.append(_END)


def _canonical(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, list) and len(value) == 1:  # type: ignore[reportUnknownArgumentType] - any JSON
        (part,) = value  # type: ignore[reportUnknownVariableType] - JSON
        if isinstance(part, dict) and part.keys() == {"type", "text"}:  # type: ignore[reportUnknownMemberType] - JSON
            return _canonical(part["text"])  # type: ignore[reportUnknownArgumentType] - text in a list of one is that text
    return msgspec.json.encode(value, order="deterministic")
