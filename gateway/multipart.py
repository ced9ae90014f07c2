"""The few fields that forebay needs of a multipart/form-data body (RFC 7578), and edits of them.

Used for uploads of audio. Like `wire`, it leaves every byte that is not edited as it came. What an
engine might read in another way than we do is refused, lest a field hide from us.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from forebay.policies.contracts import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_BOUNDARY = re.compile(
    rb"multipart/form-data *+;(?:.*;)? *+"
    rb'boundary=(?:"([^"\\]{1,200})"|([^\s;,"\\]{1,200})) *+(?:;.*)?',
    re.IGNORECASE,
)
_PARAMETER = rb';[ \t]*+(name|filename\*?)=(?:"((?:[^"\\]|\\.)*+)"|([^\s;"\\]++))[ \t]*+'
_DISPOSITION = re.compile(
    rb"content-disposition:[ \t]*+form-data[ \t]*+((?:%b)*+);?[ \t]*+" % _PARAMETER, re.IGNORECASE
)
_PARAMETERS = re.compile(_PARAMETER, re.IGNORECASE)
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*")
_MAX_TYPE = 1000
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

    @property
    def names(self) -> Collection[str]:
        """The fields that it has."""
        return {part.name for part in self._parts}

    def get(self, key: str) -> str | None:
        """Return a field's text; None when it is absent or not UTF-8."""
        for part in self._parts:
            if part.name == key:
                try:
                    return self.raw[part.value : part.end].decode()
                except UnicodeDecodeError:
                    return None
        return None

    def sizes(self, key: str) -> list[int]:
        """Return the bytes of each field of that name."""
        return [part.end - part.value for part in self._parts if part.name == key]

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
    match = _BOUNDARY.fullmatch(content_type[:_MAX_TYPE])
    if match is None or content_type.lower().count(b"boundary") != 1:
        raise InvalidRequest(
            "the multipart body's content-type names no boundary, or more than one"
        )
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
        sound = text.startswith(b"\r\n", at + len(mark)) and following >= 0
        if not sound or not 0 <= head - at <= _MAX_HEAD or len(parts) >= _MAX_PARTS:
            raise InvalidRequest("the multipart body is malformed or has too many parts")
        start = max(at - shift, 0)
        name = _name(text[at + len(mark) + 2 : head])
        parts.append(Part(name, start, head + 4 - shift, following - shift))
        at = following
    if at < 0 or text.find(mark, at + 1) >= 0:
        raise InvalidRequest("the multipart body does not end with its boundary")
    return parts


def _name(head: bytes) -> str:
    """Return a part's name. Raises InvalidRequest where it could be read in more than one way."""
    found: list[bytes] = []
    for line in head.split(b"\r\n"):
        if _HEADER.fullmatch(line) is None:
            break
        if not line.lower().startswith(b"content-disposition"):
            continue
        match = _DISPOSITION.fullmatch(line)
        if match is None:
            break
        parameters = _PARAMETERS.findall(match[1])
        found += [quoted or token for key, quoted, token in parameters if key.lower() == b"name"]
    else:
        if len(found) == 1 and b"\\" not in found[0]:
            return found[0].decode("utf-8", "replace")
    raise InvalidRequest("a part of the multipart body has no plain name")
