"""The head of a request as bytes, so built that no value can end its line.

What does not change between requests (request line, host, key) is written once and kept. Names are
checked once each, values every time: a CR or LF too many in the whole head is one count away.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PATH = re.compile(r"/[!-~]*")
_OURS = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Framing, or the endpoint's own: never taken from the headers of a request."""
_VARYING = frozenset({"x-request-id", "traceparent", "tracestate"})
"""Different in each request, so not worth keeping."""
_KEPT = 256
"""Paths may hold ids, so what is kept is bounded."""


class Heads:
    """Writes request heads for one endpoint."""

    __slots__ = ("_fixed", "_lines", "_names", "_prefix", "_starts")

    def __init__(self, *, host: str, prefix: str, key: str | None) -> None:
        self._prefix = prefix
        self._fixed = f"host: {host}\r\n"
        if key is not None:
            self._fixed += f"authorization: Bearer {_checked_key(key)}\r\n"
        self._starts: dict[tuple[str, str], str] = {}
        self._names = _Names()
        self._lines: dict[tuple[str, str], str] = {}

    def write(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], length: int
    ) -> bytes:
        """Write one head. Raises ValueError, without the value, for what cannot be sent."""
        start = self._starts.get((method, path)) or self._start(method, path)
        known = self._lines.get
        lines = "".join([known(header) or self._line(header) for header in headers])
        if length or method == "POST":
            lines += f"content-length: {length}\r\n"
        try:
            return f"{start}{lines}\r\n".encode("latin-1")
        except UnicodeEncodeError:
            # From None: the foreign error holds the whole head, key and all.
            raise ValueError("a header holds a character beyond latin-1") from None

    def _start(self, method: str, path: str) -> str:
        if _TOKEN.fullmatch(method) is None:
            raise ValueError("the method is no HTTP token")
        if _PATH.fullmatch(path) is None:
            raise ValueError("the path is not visible ASCII that begins with '/'")
        if len(self._starts) >= _KEPT:
            self._starts.clear()
        start = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fixed}"
        self._starts[method, path] = start
        return start

    def _line(self, header: tuple[str, str]) -> str:
        """Write one header line, and keep it where it will be seen again."""
        name, value = header
        if "\n" in value or "\r" in value or "\0" in value:
            raise ValueError(f"header {name} holds a line break or NUL")
        line = f"{self._names[name]}{value}\r\n"
        if name not in _VARYING:
            if len(self._lines) >= _KEPT:
                self._lines.clear()
            self._lines[header] = line
        return line


class _Names(dict[str, str]):
    """Header names that were found good, as `name: `."""

    def __missing__(self, name: str) -> str:
        if _TOKEN.fullmatch(name) is None:
            raise ValueError("a header's name is no HTTP token")
        if name.lower() in _OURS:
            raise ValueError(f"header {name} is set by the connection alone")
        if len(self) >= _KEPT:
            self.clear()
        self[name] = f"{name}: "
        return self[name]


def _checked_key(key: str) -> str:
    if re.fullmatch(r"[!-~]+", key) is None:
        raise ValueError("the endpoint's key must be visible ASCII without spaces")
    return key
