"""The few fields that forebay needs of a multipart/form-data body (RFC 7578), and edits of them.

Used for uploads of audio. Like `wire`, it leaves every byte that is not edited as it came.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from forebay.policies.contracts import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BOUNDARY = re.compile(rb'boundary=(?:"([^"\r\n]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name=(?:"((?:[^"\\\r\n]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_MAX_PARTS = 200
_MAX_HEAD = 16 << 10


class Part:
    """One part of a form."""

    __slots__ = ("end", "name", "start", "value")

    def __init__(self, name: str, start: int, value: int, end: int) -> None:
        self.name = name
        self.start = start
        """Of its delimiter line."""
        self.value = value
        self.end = end
        """One past the value."""


class Form:
    """A form as it came, with its parts."""

    __slots__ = ("_boundary", "_parts", "members", "raw")

    def __init__(self, raw: bytes, boundary: bytes, parts: list[Part]) -> None:
        self.raw = raw
        self.members: dict[str, msgspec.Raw] = {}
        """Always empty: a form has no JSON members."""
        self._boundary = boundary
        self._parts = parts

    def get(self, key: str) -> str | None:
        """Return a field's text; None when it is absent or not UTF-8."""
        for part in self._parts:
            if part.name == key:
                try:
                    return self.raw[part.value : part.end].decode()
                except UnicodeDecodeError:
                    return None
        return None

    def splice(self, replace: Mapping[str, bytes], drop: Iterable[str] = ()) -> bytes:
        """Return the form with fields replaced (values are JSON strings), appended or dropped."""
        dropped = frozenset(drop)
        if not replace and not any(part.name in dropped for part in self._parts):
            return self.raw
        left = {key: _plain(value) for key, value in replace.items()}
        pieces, new = list[bytes](), dict(left)
        for part in self._parts:
            if part.name in dropped:
                continue
            text = new.get(part.name)
            left.pop(part.name, None)
            pieces.append(self.raw[part.start : part.value])
            pieces.append(self.raw[part.value : part.end] if text is None else text)
        for key, text in left.items():
            head = b'\r\n--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n'
            pieces += (head % (self._boundary, key.encode()), text)
        pieces.append(b"\r\n--%b--\r\n" % self._boundary)
        return b"".join(pieces).removeprefix(b"\r\n")


def _plain(value: bytes) -> bytes:
    """Write a JSON value as a form field has it."""
    return msgspec.json.decode(value, type=str).encode() if value[:1] == b'"' else value


def read(raw: bytes, content_type: bytes, known: frozenset[str]) -> Form:
    """Read a form; `known` names the fields that may stand in it once only."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise InvalidRequest("the multipart body's content-type names no boundary")
    boundary = match[1] or match[2]
    parts = _split(raw, boundary)
    names = [part.name for part in parts if part.name in known]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"the form has more than one field '{name}'", param=name)
    return Form(raw, boundary, parts)


def _split(raw: bytes, boundary: bytes) -> list[Part]:
    mark = b"\r\n--" + boundary
    text = raw if raw.startswith(mark) else b"\r\n" + raw
    shift = len(text) - len(raw)
    at, parts = text.find(mark), list[Part]()
    while at >= 0 and not text.startswith(b"--", at + len(mark)):
        following = text.find(mark, at + len(mark))
        head = text.find(b"\r\n\r\n", at, following if following >= 0 else None)
        if following < 0 or not 0 <= head - at <= _MAX_HEAD or len(parts) >= _MAX_PARTS:
            raise InvalidRequest("the multipart body is malformed or has too many parts")
        start = max(at - shift, 0)
        parts.append(Part(_name(text[at:head]), start, head + 4 - shift, following - shift))
        at = following
    if at < 0:
        raise InvalidRequest("the multipart body does not end with its boundary")
    return parts


def _name(head: bytes) -> str:
    for line in head.split(b"\r\n"):
        if line[:20].lower() == b"content-disposition:":
            match = _NAME.search(line)
            if match is not None:
                return (match[1] if match[1] is not None else match[2]).decode("utf-8", "replace")
    return ""
