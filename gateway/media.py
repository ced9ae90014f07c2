"""Pictures, sounds and files in a request: how many there are, and what they count for.

Engines make some hundred tokens of a picture, whatever its bytes; as base64, by which text is
estimated, it would be some hundred thousand. So their bytes are left out, and each counts for what
the pool's engines have lately said that one takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from xxhash import xxh3_128_hexdigest

from forebay.policies.contracts import Route

from .multipart import Form

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome, Request

    from .intake import AnyBody

FIRST_GUESS = 1024
"""Tokens of one, until an engine has answered: between LLaVA's 576 and Llama 3.2's 1,601."""
_MOST = 32_768
_WEIGHT = 0.1
_SAID = {Route.CHAT: "messages", Route.MESSAGES: "messages", Route.RESPONSES: "input"}
_KEYS = ("image_url", "input_audio", "video_url", "audio_url", "file", "file_data", "source")
"""Members of a part that are one: OpenAI's, vLLM's, and Anthropic's `source`."""
_MOST_OBJECTS = 10_000
_STAND_IN_BYTES = 4096
"""Of a prompt's text, for one: as many as are taken for `FIRST_GUESS` tokens of text."""


class Media(NamedTuple):
    """How many there are, and the bytes of the body that are theirs."""

    number: int
    size: int


NONE = Media(0, 0)


class _Message(Struct):
    content: Raw | UnsetType = UNSET


class _Part(Struct):
    image_url: Raw | UnsetType = UNSET
    input_audio: Raw | UnsetType = UNSET
    video_url: Raw | UnsetType = UNSET
    audio_url: Raw | UnsetType = UNSET
    file: Raw | UnsetType = UNSET
    file_data: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    """A tool's result, which may show some, too."""


_messages = msgspec.json.Decoder(list[_Message]).decode
_parts = msgspec.json.Decoder(list[_Part | str]).decode


def media_of(body: AnyBody, route: Route) -> Media:
    """Return what a request brings beside text."""
    if isinstance(body, Form):
        files = body.sizes("file")
        return Media(len(files), sum(files))
    raw = body.members.get(_SAID.get(route, ""))
    if raw is None:
        return NONE
    text = bytes(raw)
    if text.find(b"[", 1) < 0:  # no message has parts
        return NONE
    count = size = objects = 0
    try:
        for message in _messages(text):
            content = _listed(message.content)
            if content is None:
                continue
            objects += content.count(b"{")
            if objects > _MOST_OBJECTS:  # to look at each would hold up everybody
                return NONE
            found = _in_parts(content, within=True)
            count, size = count + found.number, size + found.size
    except (msgspec.DecodeError, RecursionError):
        return NONE  # the engine says what is wrong with it
    return Media(count, size)


def _listed(content: Raw | UnsetType) -> bytes | None:
    """Return a content that is a list of parts."""
    text = b"" if content is UNSET else bytes(content)
    return text if text.startswith(b"[") else None


def _in_parts(content: bytes, *, within: bool) -> Media:
    """Add up those of a message, and `within` tools' results those that they show."""
    count = size = 0
    for part in _parts(content):
        if isinstance(part, str):
            continue
        for key in _KEYS:
            raw = getattr(part, key)
            if raw is not UNSET and (key != "source" or not _is_text(msgspec.json.decode(raw))):
                count += 1
                size += len(bytes(raw))
        shown = _listed(part.content) if within else None
        if shown is not None:
            inner = _in_parts(shown, within=False)
            count, size = count + inner.number, size + inner.size
    return Media(count, size)


def _is_text(source: object) -> bool:
    """Tell whether a document's source is text or parts, which Anthropic's may be."""
    return isinstance(source, dict) and source.get("type") in ("text", "content")  # type: ignore[reportUnknownMemberType]  # any JSON


def with_stand_ins(parts: list[Any]) -> list[Any]:
    """Return a content's parts with a digest for each that is no text, as long as text for it."""
    return [_with_stand_in(part) if isinstance(part, dict) else part for part in parts]  # type: ignore[reportUnknownArgumentType]  # any JSON


def _with_stand_in(part: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {
        key: _stand_in(part[key])
        for key in _KEYS
        if key in part and (key != "source" or not _is_text(part[key]))
    }
    inner = part.get("content")
    if isinstance(inner, list):
        changed["content"] = with_stand_ins(inner)  # type: ignore[reportUnknownArgumentType]  # any JSON
    return {**part, **changed} if changed else part


def _stand_in(value: object) -> str:
    digest = xxh3_128_hexdigest(msgspec.json.encode(value, order="deterministic"))
    return digest * (_STAND_IN_BYTES // len(digest))


class MediaTokens:
    """What one counts for in a pool, learnt from what its engines say of prompts."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = float(FIRST_GUESS)

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how many tokens an engine has counted of a prompt with some."""
        if not request.media or outcome.prompt_tokens is None:
            return
        text = request.prompt_tokens_estimate - request.media_tokens
        each = (outcome.prompt_tokens - text) / request.media
        self.tokens += _WEIGHT * (min(max(each, 1.0), _MOST) - self.tokens)
