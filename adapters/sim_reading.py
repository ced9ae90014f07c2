"""Read what the embedded engine is asked, where several routes ask it alike."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from xxhash import xxh3_64_hexdigest

from .sim_job import SimError, Tool
from .sim_text import encode

Json = dict[str, Any]
_MEDIA = ("image", "audio", "video", "file", "document")
_encode = msgspec.json.encode


class FunctionBody(msgspec.Struct):
    """A function as it is offered."""

    name: str
    description: str | None = None
    parameters: Json | None = None


class ToolBody(msgspec.Struct):
    """A tool as it is offered."""

    function: FunctionBody
    type: str = "function"


class Message(msgspec.Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[Any] | None = None
    tool_calls: list[Any] | None = None


def read_turns(messages: list[Message]) -> list[tuple[str, str]]:
    """Return the (role, text) turns."""
    turns: list[tuple[str, str]] = []
    for message in messages:
        text = read_content(message.content)
        if message.tool_calls:
            text += _encode(message.tool_calls).decode()
        turns.append((message.role, text))
    return turns


def read_content(content: str | list[Any] | None) -> str:
    """Return the text of a message's content, whatever its parts; what is no text has a mark."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            members = cast("Json", part)
            text = members.get("text")
            if isinstance(text, str):
                texts.append(text)
            elif _is_medium(members):
                texts.append(_mark(_encode(members)))
            else:
                texts.append(_encode(_with_marks(members)).decode())
        else:
            raise SimError("each part of a content must be a string or an object", param="messages")
    return "".join(texts)


def _is_medium(part: object) -> bool:
    kind = str(cast("Json", part).get("type")) if isinstance(part, dict) else ""
    return any(medium in kind for medium in _MEDIA)


def _with_marks(part: Json) -> Json:
    """Return a part, such as a tool's result, with a mark for each picture right in it."""
    shown = part.get("content")
    if not isinstance(shown, list):
        return part
    inner = cast("list[Any]", shown)
    marked = [_mark(_encode(each)) if _is_medium(each) else each for each in inner]
    return {**part, "content": marked}


def _mark(medium: bytes) -> str:
    """Return text of some 70 tokens that is another for each picture or sound."""
    return xxh3_64_hexdigest(medium) + " ." * 64


def choose_tools(
    offered: list[Tool],
    choice: str | Json | None,
    turns: list[tuple[str, str]],
    *,
    several: bool | None,
) -> list[Tool]:
    """Say which tools the model calls now.

    With 'auto': after a user's turn, each tool of whose name a word stands in that turn.
    """
    if isinstance(choice, dict):
        wanted = (choice.get("function") or choice).get("name")
        found = [tool for tool in offered if tool.name == wanted]
        if not found:
            raise SimError(f"tool_choice names {wanted!r}, which is not in tools")
        return found
    if choice in ("required", "any"):
        if not offered:
            raise SimError("tool_choice 'required' needs tools")
        return _mentioned(offered, turns)[: None if several else 1] or offered[:1]
    if choice not in (None, "auto", "none"):
        raise SimError(f"tool_choice {choice!r} is none of 'none', 'auto', 'required'")
    if not offered or choice == "none" or turns[-1][0] != "user":
        return []
    return _mentioned(offered, turns)[: None if several else 1]


def _mentioned(offered: list[Tool], turns: list[tuple[str, str]]) -> list[Tool]:
    text = turns[-1][1].lower()
    return [
        tool
        for tool in offered
        if any(
            len(word) > 3 and word in text
            for word in tool.name.lower().replace("-", "_").split("_")
        )
    ]


def read_schema(response_format: Json | None, structured: Json | None) -> object:
    """Return the schema that the answer must validate against, or None for prose."""
    if structured:
        return _read_structured(structured)
    if not response_format:
        return None
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind == "json_schema":
        # Chat nests it, Responses does not.
        inner = response_format.get("json_schema", response_format)
        schema = cast("Json", inner).get("schema") if isinstance(inner, dict) else None
        if schema is None:
            raise SimError("response_format json_schema needs a schema", param="response_format")
        return schema
    raise SimError(f"response_format type {kind!r} is not supported", param="response_format")


_ANY_OBJECT: Json = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
    },
    "required": ["answer"],
}


def _read_structured(structured: Json) -> object:
    if structured.get("json_object"):
        return _ANY_OBJECT
    schema = structured.get("json")
    if isinstance(schema, str):
        return msgspec.json.decode(schema)
    if schema is not None:
        return schema
    raise SimError("structured_outputs takes json or json_object here", param="structured_outputs")


def read_prompts(prompt: str | list[Any] | None, name: str) -> list[list[int]]:
    """Return the token ids of each prompt: a text, ids, or a list of either."""
    if isinstance(prompt, str):
        return [encode(prompt) or [0]]
    if not prompt:
        raise SimError(f"{name} must not be empty", param=name)
    if all(isinstance(item, int) for item in prompt):
        return [_check_ids(prompt, name)]
    return [
        (encode(item) or [0]) if isinstance(item, str) else _check_ids(item, name)
        for item in prompt
    ]


def _check_ids(ids: Any, name: str) -> list[int]:
    if not isinstance(ids, list) or not ids:
        raise SimError(f"each {name} must be a string or a list of token ids", param=name)
    found = cast("list[int]", ids)
    if not all(type(item) is int and 0 <= item < 1 << 32 for item in found):
        raise SimError("token ids must be numbers from 0", param=name)
    return found


def read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the strings that end an answer."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in found:
        raise SimError("stop cannot contain an empty string", param="stop")
    return found
