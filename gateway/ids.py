"""Request ids: our own for every call, and the caller's where it is well-formed."""

from __future__ import annotations

import os
import re

_VALID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_BATCH = 256
_SIZE = 16


class Ids:
    """Unguessable ids of 32 hexadecimal digits; the kernel is asked for many at a time."""

    __slots__ = ("_at", "_pool")

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0

    def next(self) -> str:
        """Return a new id."""
        if self._at >= len(self._pool):
            self._pool, self._at = os.urandom(_SIZE * _BATCH), 0
        at = self._at
        self._at = at + _SIZE
        return self._pool[at : at + _SIZE].hex()


def callers_id(value: bytes | None) -> str | None:
    """Return the caller's x-request-id when it may be repeated in headers and logs, else None."""
    if value is None or not _VALID.match(value):
        return None
    return value.decode("ascii")
