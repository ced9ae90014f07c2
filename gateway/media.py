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
from .wire import LARGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.policies.contracts import Outcome, Request

    from .intake import AnyBody
    from .wire import Body

FIRST_GUESS = 1024
"""Tokens of one, until an engine has answered: between LLaVA's 576 and Llama 3.2's 1,601."""
_MOST = 32_768
_WEIGHT = 0.1
_LITTLE_TEXT = 256
"""Tokens of text beside which one is learnt from, and below an eighth of what all count for.

Text may take a third of what is estimated for its bytes, or four times that. Beside much of it, the
difference would be taken for pictures, and one tenant's language count in all tenants' limits.
"""
SAID = {Route.CHAT: "messages", Route.MESSAGES: "messages", Route.RESPONSES: "input"}
"""Members of a body that hold a conversation, by its route."""
_KEYS = (
    *("image_url", "input_audio", "video_url", "audio_url", "file", "file_data", "source"),
    *("image_embeds", "audio_embeds"),
)
"""Members of a part that are one: OpenAI's, vLLM's, and Anthropic's `source`."""
_MEDIA = frozenset(_KEYS)
_BRACE, _BRACKET = b"{["
_INSIDE = frozenset(("content", "output"))
"""Members of a message that hold parts, and of a part that is a tool's result."""
_STAND_IN_BYTES = 4096
"""Of a prompt's text, for one: as many as are taken for `FIRST_GUESS` tokens of text."""
_MOST_LONG = 256
"""Stand-ins of that length in one prompt; a digest alone stands for each that follows."""


class Media(NamedTuple):
    """How many there are, and the bytes of the body that are theirs."""

    number: int
    size: int


NONE = Media(0, 0)


class _Message(Struct):
    content: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET


class _Part(_Message):
    image_url: Raw | UnsetType = UNSET
    input_audio: Raw | UnsetType = UNSET
    video_url: Raw | UnsetType = UNSET
    audio_url: Raw | UnsetType = UNSET
    file: Raw | UnsetType = UNSET
    file_data: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET
    image_embeds: Raw | UnsetType = UNSET
    audio_embeds: Raw | UnsetType = UNSET


class _Source(Struct):
    type: Raw = Raw(b"")


_messages = msgspec.json.Decoder(list[_Message]).decode
_part = msgspec.json.Decoder(_Part).decode
_parts = msgspec.json.Decoder(list[_Part | str]).decode
_source = msgspec.json.Decoder(_Source).decode
_opened = msgspec.json.Decoder(list[dict[str, Raw] | str]).decode
_value = msgspec.json.Decoder().decode


def media_of(body: AnyBody, route: Route) -> Media:
    """Return what a request brings beside text."""
    if isinstance(body, Form):
        files = body.sizes("file")
        return Media(len(files), sum(files))
    raw = body.members.get(SAID.get(route, ""))
    if raw is None:
        return NONE
    if body.found is not None:
        return body.found.media
    if len(body.raw) > LARGE:  # no copy, though other members may look as if there were parts
        text, begin = body.raw, body.raw.find(b"[")
    else:
        text, begin = bytes(raw), 0
    if text.find(b"[", begin + 1) < 0 and (route is not Route.RESPONSES or b'"output"' not in text):
        return NONE  # no message has parts, nor an output that is one
    return NONE if body.crumbled else _of_messages(raw)


def _of_messages(raw: Raw) -> Media:
    try:
        return _sum(_inside(message, deeper=True) for message in _messages(raw))
    except (msgspec.DecodeError, RecursionError):
        return NONE  # the engine says what is wrong with it


def _sum(found: Iterable[Media]) -> Media:
    count = size = 0
    for each in found:
        count, size = count + each.number, size + each.size
    return Media(count, size)


def _inside(holder: _Message, *, deeper: bool) -> Media:
    """Add up those of a message, and with `deeper` those that tools' results in it show."""
    content, output = holder.content, holder.output
    if output is UNSET:
        return NONE if content is UNSET else _in_parts(content, deeper=deeper)
    said = NONE if content is UNSET else _in_parts(content, deeper=deeper)
    if _begins(output, _BRACE):  # a computer's, which is one part
        return _sum((said, _in([_part(output)], deeper=deeper)))
    return _sum((said, _in_parts(output, deeper=deeper)))


def _begins(value: Raw, byte: int) -> bool:
    view = memoryview(value)
    return view.nbytes > 0 and view[0] == byte


def _in_parts(content: Raw, *, deeper: bool) -> Media:
    return _in(_parts(content), deeper=deeper) if _begins(content, _BRACKET) else NONE


def _in(parts: Iterable[_Part | str], *, deeper: bool) -> Media:
    count = size = 0
    for part in parts:
        if isinstance(part, str):
            continue
        for key in _KEYS:
            raw = getattr(part, key)
            if raw is not UNSET and _is_medium(key, raw):
                count, size = count + 1, size + memoryview(raw).nbytes
        if deeper and (part.content is not UNSET or part.output is not UNSET):
            inner = _inside(part, deeper=False)
            count, size = count + inner.number, size + inner.size
    return Media(count, size)


def _is_medium(key: str, value: Raw) -> bool:
    """Tell whether a member's value is one: a document's source may be text or parts."""
    if key != "source":
        return memoryview(value).nbytes != 4 or bytes(value) != b"null"
    return _begins(value, _BRACE) and bytes(_source(value).type) not in (b'"text"', b'"content"')


def conversation(body: Body, name: str) -> Any:
    """Decode the member that holds a conversation, of a long body; None where there is none.

    A long picture in it is left as it is written (`Raw`), which saves two copies of it. Raises
    InvalidRequest.
    """
    raw = body.members.get(name)
    if raw is not None:
        try:
            return _open(raw, deeper=3)  # messages, their parts, and those of tools' results
        except (msgspec.DecodeError, RecursionError):
            pass
    return body.get(name)


def _open(raw: Raw, *, deeper: int) -> Any:
    """Decode a list of messages or parts, but for what is long in it and no text."""
    if not deeper or not _is_long(raw) or not _begins(raw, _BRACKET):
        return _value(raw)
    return [
        each
        if isinstance(each, str)
        else {key: _member(key, value, deeper=deeper - 1) for key, value in each.items()}
        for each in _opened(raw)
    ]


def _member(key: str, value: Raw, *, deeper: int) -> Any:
    if key in _INSIDE:
        return _open(value, deeper=deeper)
    if key in _MEDIA and _is_long(value) and _is_medium(key, value):
        return value
    return _value(value)


def _is_long(value: Raw) -> bool:
    return memoryview(value).nbytes > LARGE


class StandIns:
    """Puts digests in the place of what is no text, in one prompt."""

    __slots__ = ("_long",)

    def __init__(self) -> None:
        self._long = _MOST_LONG

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with a digest for each in it that is no text, as long as its text."""
        if isinstance(message.get("content"), str) and "output" not in message:
            return message
        return self._inside(message, {}, deeper=True)

    def _inside(
        self, holder: dict[str, Any], changed: dict[str, Any], *, deeper: bool
    ) -> dict[str, Any]:
        for key in holder.keys() & _INSIDE:
            value = holder[key]
            if isinstance(value, list):
                changed[key] = self._among(value, deeper=deeper)  # type: ignore[reportUnknownArgumentType]  # any JSON
            elif key == "output" and isinstance(value, dict):
                changed[key] = self._part(value, deeper=deeper)  # type: ignore[reportUnknownArgumentType]  # any JSON
        return {**holder, **changed} if changed else holder

    def _among(self, parts: list[Any], *, deeper: bool) -> list[Any]:
        return [
            self._part(part, deeper=deeper) if isinstance(part, dict) else part  # type: ignore[reportUnknownArgumentType]  # any JSON
            for part in parts
        ]

    def _part(self, part: dict[str, Any], *, deeper: bool) -> dict[str, Any]:
        changed: dict[str, Any] = {
            key: self._stand_in(part[key])
            for key in part.keys() & _MEDIA
            if part[key] is not None and (key != "source" or _is_source(part[key]))
        }
        if deeper:
            return self._inside(part, changed, deeper=False)
        return {**part, **changed} if changed else part

    def _stand_in(self, value: object) -> str:
        if not isinstance(value, Raw):  # a long one's digest is of the text that it came as
            value = msgspec.json.encode(value, order="deterministic")
        digest = xxh3_128_hexdigest(value)  # type: ignore[reportArgumentType]  # bytes in memory
        self._long -= 1
        return digest if self._long < 0 else digest * (_STAND_IN_BYTES // len(digest))


def _is_source(source: object) -> bool:
    if isinstance(source, Raw):  # which `_is_medium` has said
        return True
    return isinstance(source, dict) and source.get("type") not in ("text", "content")  # type: ignore[reportUnknownMemberType]  # any JSON


class MediaTokens:
    """What one counts for in a pool, learnt from what its engines say of prompts."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = float(FIRST_GUESS)

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how many tokens an engine has counted of a prompt with some."""
        prompt = outcome.prompt_tokens
        if not request.media or prompt is None or prompt <= 0:
            return
        text = request.prompt_tokens_estimate - request.media_tokens
        if text > max(_LITTLE_TEXT, request.media_tokens // 8):
            return
        each = (prompt - text) / request.media
        self.tokens += _WEIGHT * (min(max(each, 1.0), _MOST) - self.tokens)
