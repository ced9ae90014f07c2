"""Read a JSON body lightly and edit its top-level members in place.

The body is parsed once, into top-level members that stay undecoded (`msgspec.Raw`), so a long
prompt costs a validating skip and no objects. Edits are spliced into the original bytes: whatever
is not edited goes on exactly as it came, white space and escapes included.

What is refused here, in one place, although some engines take it: NaN and Infinity (no JSON), lone
surrogates (no Unicode), a byte order mark, nesting deeper than the parser's stack.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.policies.contracts import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from .long_reading import Found

_WHITE = b" \t\r\n"
_SKIP = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_SPACE, _BRACE = b" {"
MOST_MEMBERS = 1000
"""Finding a member costs microseconds, so there may not be millions."""
_MOST_SCANNED = 64 << 10
"""Bytes of values that may be looked through token by token: 20 ms."""

_SMALL = 128 << 10
"""Bytes in which there cannot be too many values."""
_MOST_OBJECTS = 50_000
_MOST_COMMAS = 1_000_000
LARGE = 512 << 10
"""Bytes from which a body is looked at without copies of it, whose fresh memory costs the most."""
_PIECE = 64 << 10

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_text = msgspec.json.Decoder(str).decode


Span = tuple[str, int, int, int]
"""A top-level member: its key, where the key and the value begin, and where the value ends."""


class Body:
    """A JSON object as it came, with its top-level members."""

    __slots__ = ("_crumbled", "found", "members", "raw", "spans")

    def __init__(
        self, raw: bytes, members: Mapping[str, msgspec.Raw], spans: Sequence[Span]
    ) -> None:
        self.raw = raw
        self.members = members
        self.spans = spans
        self.found: Found | None = None
        """What was found in a long one before it was asked for."""
        self._crumbled: bool | None = None if len(raw) > _SMALL else False

    @property
    def crumbled(self) -> bool:
        """Whether it may be of more values than can be looked at without holding up others.

        Text counts, too: of code or tables there may be some megabytes.
        """
        if self._crumbled is None:
            raw = self.raw
            self._crumbled = _more_than(raw, b"{", _MOST_OBJECTS) or _more_than(
                raw, b",", _MOST_COMMAS
            )
        return self._crumbled

    @property
    def names(self) -> Collection[str]:
        """The top-level members that it has."""
        return self.members.keys()

    def get(self, key: str) -> Any:
        """Decode one member; None when absent or null.

        Raises InvalidRequest: until now it was only skipped, and a number may be too large.
        """
        raw = self.members.get(key)
        if raw is None:
            return None
        try:
            return _value(raw)
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(f"the value of '{key}' cannot be read", param=key) from None

    def splice(self, replace: Mapping[str, bytes], drop: Iterable[str] = ()) -> bytes:
        """Return the body with members replaced, appended or dropped, the rest byte for byte."""
        if not replace and not drop:
            return self.raw
        spans = self.spans
        dropped = frozenset(drop)
        kept = [span for span in spans if span[0] not in dropped]
        if len(kept) != len(spans):
            return _rebuild(self.raw, spans, kept, replace)
        return _edit(self.raw, spans, replace)


EMPTY = Body(b"", {}, ())
"""Stands for a call without a JSON body."""


def read(raw: bytes, known: frozenset[str]) -> Body:
    """Read a JSON object; `known` names the members whose repetition would be ambiguous to us.

    Raises InvalidRequest, with a message that never holds any of the body.
    """
    if not raw.isascii():
        _check_unicode(raw)
    try:
        members = _members(raw)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except msgspec.ValidationError:
        raise InvalidRequest("the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(_syntax(raw, error)) from None
    if len(members) > MOST_MEMBERS:
        raise _too_many()
    spans = _walk(raw, members)
    return Body(raw, members, _scan(raw, members, known) if spans is None else spans)


def _more_than(raw: bytes, mark: bytes, most: int) -> bool:
    """Tell whether a byte comes more often; what it is not in, as base64, is soon passed over."""
    found = 0
    at = raw.find(mark)
    while at >= 0:
        found += raw.count(mark, at, at + _PIECE)  # which takes five times as long as `find`
        if found > most:
            return True
        at = raw.find(mark, at + _PIECE)
    return False


def _too_many() -> InvalidRequest:
    return InvalidRequest(f"the body has more than {MOST_MEMBERS} members")


def _check_unicode(raw: bytes) -> None:
    if raw.startswith(_BOM):
        raise InvalidRequest("the body starts with a byte order mark; send plain UTF-8")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})") from None


def _syntax(raw: bytes, error: msgspec.DecodeError) -> str:
    if not raw:
        return "the body is empty; send a JSON object"
    text = str(error)
    place = re.search(r"\(byte (\d+)\)$", text)
    where = f" (byte {place[1]})" if place else ""
    return f"the body is not valid JSON{where}; NaN, Infinity and lone surrogates are not either"


@lru_cache(maxsize=512)
def _literals(keys: tuple[str, ...]) -> tuple[bytes, ...]:
    """Write keys as they stand in a body; most bodies have one of a few sets of keys."""
    return tuple(b'"%b":' % key.encode() for key in keys)


def _walk(raw: bytes, members: Mapping[str, msgspec.Raw]) -> list[Span] | None:
    """Find the members of a body written in one of the two usual styles; None for any other.

    Every key and value is compared with the text where it should be. The parser keeps a repeated
    key's first place and its last value, so a repeated or escaped key ends the walk.
    """
    spans: list[Span] = []
    position, large = 1, len(raw) > LARGE
    for literal, (key, value) in zip(_literals(tuple(members)), members.items(), strict=True):
        if spans:
            position += 2 if raw[position + 1] == _SPACE else 1
        at = position + len(literal)
        if raw[position:at] != literal:
            return None
        if raw[at] == _SPACE:
            at += 1
        if large:
            end = _after(raw, at, value)
            if end is None:
                return None
        else:
            text = bytes(value)
            end = at + len(text)
            if raw[at:end] != text:
                return None
        spans.append((key, position, at, end))
        position = end
    return spans if raw[0] == _BRACE and raw[position:] == b"}" else None


def _scan(raw: bytes, members: Mapping[str, msgspec.Raw], known: frozenset[str]) -> list[Span]:
    """Find the members by tokens: escaped and repeated keys included."""
    spans, seen = list[Span](), set[str]()
    position, left = _skip(raw, 0) + 1, _MOST_SCANNED
    while True:
        start = _skip(raw, position)
        literal = _STRING.match(raw, start)
        if literal is None:
            return spans
        key = _text(literal.group())
        if key in seen and key in known:
            raise InvalidRequest(f"the body names '{key}' more than once", param=key)
        if len(spans) >= MOST_MEMBERS:
            raise _too_many()
        seen.add(key)
        value = _skip(raw, raw.index(b":", literal.end()) + 1)
        end = _end_of(raw, value, members[key])
        if end is None:
            end = _find_end(raw, value, left)
            left -= end - value
        spans.append((key, start, value, end))
        position = _skip(raw, end)
        if raw[position : position + 1] == b"}":
            return spans
        position += 1


def _skip(raw: bytes, position: int) -> int:
    match = _SKIP.match(raw, position)
    assert match is not None  # it matches nothing, too
    return match.end()


def _after(raw: bytes, position: int, value: msgspec.Raw) -> int | None:
    """Return where the text at `position` ends if it is this value's. Makes no long copies."""
    view = memoryview(value)
    for start in range(0, view.nbytes, _PIECE):
        if not raw.startswith(bytes(view[start : start + _PIECE]), position + start):
            return None
    return position + view.nbytes


def _end_of(raw: bytes, position: int, value: msgspec.Raw) -> int | None:
    """Return where the value at `position` ends, if it is `value`, the last of its key."""
    end = _after(raw, position, value)
    if end is None:
        return None
    after = _skip(raw, end)
    return end if raw[after : after + 1] in (b",", b"}") else None


def _find_end(raw: bytes, position: int, most: int) -> int:
    """Find by its tokens where the value at `position` ends: it is not the last of its key."""
    depth = 0
    for token in _TOKEN.finditer(raw, position):
        at = token.start()
        if at - position > most:
            raise InvalidRequest("the body repeats long members; name each once")
        mark = token.group()
        if mark in (b"{", b"["):
            depth += 1
        elif depth == 0 and mark in (b",", b"}"):
            return position + len(raw[position:at].rstrip(_WHITE))
        elif mark in (b"}", b"]"):
            depth -= 1
    return len(raw)  # pragma: no cover - the parser has accepted the text, so a brace comes


def _edit(raw: bytes, spans: Iterable[Span], replace: Mapping[str, bytes]) -> bytes:
    """Replace values where they stand and append what is new before the closing brace."""
    pieces, position, last, left = list[bytes | memoryview](), 0, 0, dict(replace)
    text = memoryview(raw) if len(raw) > LARGE else raw
    for key, _, value, last in spans:
        new = replace.get(key)
        if new is None:
            continue
        pieces += (text[position:value], new)
        position = last
        left.pop(key, None)
    if left:
        at = last or raw.index(b"{") + 1
        pieces += (text[position:at], b"," if last else b"", _written(left))
        position = at
    pieces.append(text[position:])
    return b"".join(pieces)


def _written(members: Mapping[str, bytes]) -> bytes:
    return b",".join(b'"%b":%b' % (key.encode(), value) for key, value in members.items())


def _rebuild(
    raw: bytes, spans: Sequence[Span], kept: Iterable[Span], replace: Mapping[str, bytes]
) -> bytes:
    """Join the members that stay; each keeps its own bytes."""
    left, texts = dict(replace), list[bytes]()
    for key, start, value, end in kept:
        new = replace.get(key)
        left.pop(key, None)
        texts.append(raw[start:end] if new is None else raw[start:value] + new)
    if left:
        texts.append(_written(left))
    return raw[: spans[0][1]] + b",".join(texts) + raw[spans[-1][3] :]
