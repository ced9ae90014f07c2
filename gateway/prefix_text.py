"""A prompt as one text that is equal where the model would see the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay.policies.contracts import Route

from . import wire
from .media import SAID, StandIns, conversation

if TYPE_CHECKING:
    from .intake import AnyBody

_HEAD = ("system", "instructions", "tools")
_END = b"\x1e"
_SHAPING = (
    *("system", "instructions", "tools", "tool_choice"),
    *("chat_template_kwargs", "reasoning_effort", "reasoning"),
)
"""Members besides the messages that a template may write into a prompt."""
_PART_IN = ".", "user"
"""What stands after a beginning that a template could not end with, and who says it."""


def prompt_text(route: Route, body: AnyBody) -> bytes:
    """Write a prompt as one text that is equal where the model would see the same.

    Key order and white space of the JSON do not count; what an image is called does,
    of which a digest stands there.
    """
    if not isinstance(body, wire.Body):
        return b""
    found = body.found
    if found is not None and found.prompt is not None:
        text, found.prompt = found.prompt, None  # it is held no longer than it is wanted
        return text
    if route not in SAID:
        return _completion(body) if route is Route.COMPLETIONS else b""
    if body.crumbled:
        return b""  # none is asked for twice, and each would hold up everybody
    pieces: list[bytes] = []
    for name in _HEAD:
        if name in body.members:
            pieces += (_canonical(body.get(name)), _END)
    name = SAID[route]
    said = body.get(name) if len(body.raw) <= wire.LARGE else conversation(body, name)
    if isinstance(said, list):
        stand_ins = StandIns()
        for message in said:  # type: ignore[reportUnknownVariableType]  # any JSON
            _write(message, pieces, stand_ins)
    elif said is not None:
        pieces.append(_canonical(said))
    return b"".join(pieces)


def _completion(body: wire.Body) -> bytes:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[reportUnknownVariableType]  # any JSON
    return b"" if prompt is None else _canonical(prompt)


def beginning(route: Route, body: AnyBody, size: int) -> dict[str, Any] | None:
    """Return members of a body whose prompt begins as this one's: with `size` bytes of its text.

    Or with a little less, where these end inside what cannot be cut. None for a route of which
    nothing can be cut. Nothing of the prompt's text after those bytes is in it.
    """
    if route is Route.COMPLETIONS:
        return _beginning_of_text(body.get("prompt"), size)
    name = SAID.get(route)
    if name is None:
        return None
    heads = (len(_canonical(body.get(head))) + 1 for head in _HEAD if head in body.members)
    size -= sum(heads)
    said: Any = body.get(name)
    if isinstance(said, str) and route is Route.RESPONSES:
        said = [{"role": "user", "content": said}]
        size += len(said[0]["role"]) + 1  # which its text does not have
    if not isinstance(said, list):
        return None
    messages = _first_messages(said, size)  # type: ignore[reportUnknownArgumentType]  # any JSON
    last: Any = messages[-1] if messages else {}
    content, role = _PART_IN
    if last.get("role") != role:
        messages.append({"role": role, "content": content})
    shaping = {each: body.get(each) for each in _SHAPING if each in body.members}
    return {**shaping, name: messages}


def _beginning_of_text(prompt: Any, size: int) -> dict[str, Any] | None:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[reportUnknownVariableType]  # any JSON
    if isinstance(prompt, str):
        cut = _cut(prompt, size)
        return {"prompt": cut} if cut else None
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # any JSON
        return None
    whole, comma, _ = _canonical(prompt)[:size].rpartition(b",")
    return {"prompt": msgspec.json.decode(whole + b"]")} if comma else None


def _first_messages(said: list[Any], left: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    stand_ins = StandIns()
    for message in said:
        if not isinstance(message, dict):
            break
        pieces: list[bytes] = []
        _write(message, pieces, stand_ins)
        size = sum(map(len, pieces))
        if size > left:
            part = _part(message, left)  # type: ignore[reportUnknownArgumentType]  # any JSON
            return [*messages, part] if part else messages
        messages.append(message)  # type: ignore[reportUnknownArgumentType]  # likewise
        left -= size
    return messages


def _part(message: dict[str, Any], left: int) -> dict[str, Any] | None:
    """Return a message with the beginning of what it says, where that is plain text."""
    role, content = str(message.get("role")), message.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):  # type: ignore[reportUnknownArgumentType]  # any JSON
        content = content[0].get("text")  # type: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON
    if not isinstance(content, str):
        return None
    said = _cut(content, left - len(role.encode("utf-8", "replace")) - 1)
    return {"role": role, "content": said} if said else None


def _cut(text: str, size: int) -> str:
    return text.encode("utf-8", "replace")[: max(0, size)].decode("utf-8", "ignore")


def _write(message: Any, pieces: list[bytes], stand_ins: StandIns) -> None:
    """Write one message: who speaks, what is said, what is called."""
    if not isinstance(message, dict):
        pieces += (_canonical(message), _END)
        return
    message = stand_ins.message(message)  # type: ignore[reportUnknownArgumentType]  # any JSON
    role, content = message.get("role"), message.get("content")
    pieces += (str(role).encode("utf-8", "replace"), b"\x1f", _canonical(content))  # type: ignore[reportUnknownArgumentType]  # JSON
    if len(message) > ("role" in message) + ("content" in message):  # type: ignore[reportUnknownArgumentType]  # JSON
        rest = {k: v for k, v in message.items() if k not in ("role", "content")}  # type: ignore[reportUnknownVariableType]  # JSON
        pieces.append(_canonical(rest))
    pieces.append(_END)


def _canonical(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, list) and len(value) == 1:  # type: ignore[reportUnknownArgumentType]  # any JSON
        (part,) = value  # type: ignore[reportUnknownVariableType]  # JSON
        if isinstance(part, dict) and part.keys() == {"type", "text"}:  # type: ignore[reportUnknownMemberType]  # JSON
            return _canonical(part["text"])  # type: ignore[reportUnknownArgumentType]  # text in a list of one is that text
    return msgspec.json.encode(value, order="deterministic")
