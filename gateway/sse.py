"""An incremental look at a stream of server-sent events (WHATWG HTML, section 9.2).

The scanner is fed whatever came off the wire, cut anywhere, and gives back what may go on. It never
delays bytes, with one exception: while a usage event that only forebay asked for has to be taken
out, the event in progress is held back until it is whole.

Cost decides the shape: after the first token an event is decoded only when one of its dialect's
marks is in it, and of a large read only the end is looked at, since an end comes at the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .dialects import Seen
from .dialects.only_usage import only_usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .dialects import Dialect

LOOK_LIMIT = 1 << 20
"""Bytes of one event after which a stream is only relayed, no longer read."""
WINDOW = 2048
"""Of a read larger than twice this, only this much at its end is looked at for marks, or what comes
from the first usage on, where an event of it must not pass."""
_USAGE = b'sage"'
"""Found in a third of the time that '"usage"' takes: the search skips by what is rare in it."""


_ENDS = re.compile(rb".*?(?:\n\n|\n\r\n|\r\r)", re.DOTALL)


class Scanner:
    """Reads one stream as it passes."""

    __slots__ = ("_dialect", "_strip", "_tail", "blind", "events", "seen")

    def __init__(self, dialect: Dialect, *, strip_usage: bool) -> None:
        self._dialect = dialect
        self._strip = strip_usage
        self._tail = bytearray()
        self.seen = Seen()
        self.events = 0
        """Events that have passed, comments left out; an estimate where reads are large."""
        self.blind = False
        """One event outgrew LOOK_LIMIT, so nothing is known any more."""

    @property
    def at_boundary(self) -> bool:
        """Nothing of an unfinished event has gone out."""
        return not self.blind and (self._strip or not self._tail)

    def feed(self, data: bytes) -> bytes:
        """Look at what came and return what may go on."""
        if self.blind:
            return data
        if self._tail:
            complete = self._grow(data)
        elif (cut := _boundary(data)) == len(data):
            complete = data
        else:
            complete, self._tail = data[:cut], bytearray(data[cut:])
        if complete:
            complete = self._look(complete)
        if len(self._tail) > LOOK_LIMIT:
            self.blind = True
            complete, self._tail = complete + self._tail, bytearray()
        return complete if self._strip else data

    def _grow(self, data: bytes) -> bytes:
        """Add to the event in progress; return what is whole with it.

        Only what is new is looked through: an event may come in ten thousand pieces.
        """
        tail = self._tail
        edge = bytes(tail[-3:])  # a blank line may have begun there
        cut = _boundary(edge + data) - len(edge)
        if cut <= 0:
            tail += data
            return b""
        self._tail = bytearray(data[cut:])
        tail += data[:cut]
        return bytes(tail)

    def flush(self) -> bytes:
        """Return what was held back, at the end of input."""
        return bytes(self._tail) if self._strip else b""

    def _look(self, complete: bytes) -> bytes:
        """Learn from whole events; return them less the one to be stripped."""
        # Blank lines: one sign alone is counted sign by sign, which takes four times as long.
        number = complete.count(b"\n\n") or complete.count(b"\n\r\n") or complete.count(b"\r\r")
        self.events += number or not complete.startswith(b":")
        start, cuts = 0, list[tuple[int, int]]()
        if not self.seen.token:
            start = self._seek_token(complete, cuts)
        if len(complete) - start > 2 * WINDOW:
            cut = complete.rfind(b"\n\n", start, len(complete) - WINDOW)
            if self._strip and (early := complete.find(_USAGE, start, max(cut, 0))) >= 0:
                cut = complete.rfind(b"\n\n", start, early)
            start = cut + 2 if cut >= 0 else start
        window = complete[start:] if start else complete
        for mark in self._dialect.marks:
            if mark in window:
                self._read(window, start, cuts)
                break
        return _less(complete, cuts) if cuts else complete

    def _seek_token(self, complete: bytes, cuts: list[tuple[int, int]]) -> int:
        """Read events up to the first token; return where the rest begins."""
        look, seen, position = self._dialect.look, self.seen, 0
        for text, name, data in events(complete):
            start, position = position, position + len(text)
            look(name, data, seen)
            if self._strip and b"usage" in data and only_usage(data):
                cuts.append((start, position))
            if seen.token:
                break
        return position

    def _read(self, window: bytes, offset: int, cuts: list[tuple[int, int]]) -> None:
        """Read those events of the window that have a mark; note what must not pass."""
        look, seen = self._dialect.look, self.seen
        for start, end in _marked(window, self._dialect.marks):
            position = offset + start
            for text, name, data in events(window[start:end]):
                look(name, data, seen)
                if self._strip and only_usage(data):
                    cuts.append((position, position + len(text)))
                position += len(text)


def _less(complete: bytes, cuts: list[tuple[int, int]]) -> bytes:
    """Cut parts out, by their places: an event's text may stand in another, too."""
    pieces, position = list[bytes](), 0
    for start, end in cuts:
        pieces.append(complete[position:start])
        position = end
    return b"".join((*pieces, complete[position:]))


def _marked(window: bytes, marks: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """Return where the events are that hold a mark, in their order."""
    if b"\r" in window:
        return [(0, len(window))]  # rare, so all of it
    found: dict[int, int] = {}
    for mark in marks:
        at = window.find(mark)
        while at >= 0:
            end = window.find(b"\n\n", at) + 2
            start = window.rfind(b"\n\n", 0, at)
            found[start + 2 if start >= 0 else 0] = end
            at = window.find(mark, end)
    return sorted(found.items())


def _boundary(data: bytes) -> int:
    """One past the last blank line: what lies before it is whole events."""
    if data.endswith(b"\n\n"):
        return len(data)
    plain = data.rfind(b"\n\n") + 2
    crlf = data.rfind(b"\n\r\n") + 3
    bare = data.rfind(b"\r\r") + 2
    return max(plain if plain > 1 else 0, crlf if crlf > 2 else 0, bare if bare > 1 else 0)


def _split(block: bytes) -> Iterator[bytes]:
    """Cut one event after the other off: who looks for the first token needs only a few."""
    start = 0
    while (end := block.find(b"\n\n", start) + 2) > 1:
        yield block[start:end]
        start = end


def events(block: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Split whole events into (text with its blank line, name, data)."""
    plain = b"\r" not in block
    for text in _split(block) if plain else _ENDS.findall(block):
        if plain and text.startswith(b"data: ") and text.count(b"\n") == 2:
            yield text, b"", text[6:-2]
            continue
        name, data = b"", list[bytes]()
        for line in text.splitlines():
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                name = line[6:].strip()
        yield text, name, b"\n".join(data)
