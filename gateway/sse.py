"""An incremental look at a stream of server-sent events (WHATWG HTML, section 9.2).

The scanner is fed whatever came off the wire, cut anywhere, and gives back what may go on. It never
delays bytes, with one exception: while a usage event that only forebay asked for has to be taken
out, the event in progress is held back until it is whole.

Cost decides the shape: after the first token an event is decoded only when one of its dialect's
marks is in it, and of a large read only the end is looked at, since an end comes at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .dialects import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .dialects import Dialect

LOOK_LIMIT = 1 << 20
"""Bytes of one event after which a stream is only relayed, no longer read."""
WINDOW = 4096
"""Of a read larger than twice this, only this much at its end is looked at for marks."""


class _Bare(msgspec.Struct):
    choices: list[Any] | None = None
    usage: dict[str, Any] | None = None


_bare = msgspec.json.Decoder(_Bare).decode


class Scanner:
    """Reads one stream as it passes."""

    __slots__ = ("_dialect", "_strip", "_tail", "blind", "events", "seen")

    def __init__(self, dialect: Dialect, *, strip_usage: bool) -> None:
        self._dialect = dialect
        self._strip = strip_usage
        self._tail = b""
        self.seen = Seen()
        self.events = 0
        """Events that have passed, comments left out; an estimate where reads are large."""
        self.blind = False
        """One event outgrew LOOK_LIMIT, so nothing is known any more."""

    @property
    def at_boundary(self) -> bool:
        """Nothing of an unfinished event has gone out."""
        return self._strip or not self._tail

    def feed(self, data: bytes) -> bytes:
        """Look at what came and return what may go on."""
        if self.blind:
            return data
        whole = self._tail + data if self._tail else data
        cut = _boundary(whole)
        if cut == len(whole):
            complete, self._tail = whole, b""
        else:
            complete, self._tail = whole[:cut], whole[cut:]
            if len(self._tail) > LOOK_LIMIT:
                return self._give_up(data)
        if complete:
            complete = self._look(complete)
        return complete if self._strip else data

    def flush(self) -> bytes:
        """Return what was held back, at the end of input."""
        held, self._tail = self._tail, b""
        return held if self._strip else b""

    def _give_up(self, data: bytes) -> bytes:
        self.blind = True
        held, self._tail = self._tail, b""
        return held if self._strip else data

    def _look(self, complete: bytes) -> bytes:
        """Learn from whole events; return them less the one to be stripped."""
        dialect, seen = self._dialect, self.seen
        if seen.token:
            self.events += complete.count(b"\n") // dialect.lines_per_event or 1
            window = complete
            if len(complete) > 2 * WINDOW:
                window = complete[_boundary(complete[:-WINDOW]) :]
            for mark in dialect.marks:
                if mark in window:
                    break
            else:
                return complete
            return self._read(window, complete)
        self.events += sum(1 for _ in events(complete))
        return self._read(complete, complete)

    def _read(self, window: bytes, complete: bytes) -> bytes:
        look, seen = self._dialect.look, self.seen
        for text, name, data in events(window):
            look(name, data, seen)
            if self._strip and b"usage" in data and _only_usage(data):
                complete = complete.replace(text, b"", 1)
        return complete


def _boundary(data: bytes) -> int:
    """One past the last blank line: what lies before it is whole events."""
    if data.endswith(b"\n\n"):
        return len(data)
    plain = data.rfind(b"\n\n") + 2
    crlf = data.rfind(b"\n\r\n") + 3
    bare = data.rfind(b"\r\r") + 2
    return max(plain if plain > 1 else 0, crlf if crlf > 2 else 0, bare if bare > 1 else 0)


def events(block: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Split whole events into (text with its blank line, name, data); comments alone give none."""
    lines, name, data, start, position = block.splitlines(keepends=True), b"", list[bytes](), 0, 0
    for line in lines:
        position += len(line)
        field = line.rstrip(b"\r\n")
        if not field:
            if data or name:
                yield block[start:position], name, b"\n".join(data)
            name, data, start = b"", [], position
        elif field.startswith(b"data:"):
            data.append(field[5:].removeprefix(b" "))
        elif field.startswith(b"event:"):
            name = field[6:].strip()


def _only_usage(data: bytes) -> bool:
    """Whether this is the event that exists only because usage was asked for."""
    try:
        read = _bare(data)
    except msgspec.MsgspecError:
        return False
    return read.choices == [] and read.usage is not None
