"""Tells the one event that a stream has only because forebay asked for usage."""

from __future__ import annotations

from .shapes import UNREADABLE, read_bare


def only_usage(data: bytes) -> bool:
    """Whether this is the event that exists only because usage was asked for."""
    try:
        read = read_bare(data)
    except UNREADABLE:
        return False
    return read.choices == [] and read.usage is not None
