"""Tells the one event that a stream has only because forebay asked for usage."""

from __future__ import annotations

from typing import Any

import msgspec

from .base import UNREADABLE


class _Bare(msgspec.Struct):
    choices: list[Any] | None = None
    usage: dict[str, Any] | None = None


_bare = msgspec.json.Decoder(_Bare).decode


def only_usage(data: bytes) -> bool:
    """Whether this is the event that exists only because usage was asked for."""
    try:
        read = _bare(data)
    except UNREADABLE:
        return False
    return read.choices == [] and read.usage is not None
