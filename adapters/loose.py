"""Read an engine's JSON without trusting its shape.

An engine of another version, or a thing that is no engine at all, may answer anything. Each reader
returns what it can use and an empty value otherwise; none raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

Members = dict[str, msgspec.Raw]


def read_object(raw: bytes | msgspec.Raw | None) -> Members:
    """Return the members of a JSON object, undecoded; empty when it is none."""
    return _read(raw, Members) or {}


def read_list(raw: bytes | msgspec.Raw | None) -> list[msgspec.Raw]:
    """Return the items of a JSON array, undecoded; empty when it is none."""
    return _read(raw, list[msgspec.Raw]) or []


def read_text(raw: bytes | msgspec.Raw | None) -> str | None:
    """Return a JSON string; None when it is none, or has only white space."""
    text = _read(raw, str)
    return text if text and not text.isspace() else None


def read_int(raw: bytes | msgspec.Raw | None) -> int | None:
    """Return a JSON integer that is not negative; None when it is none."""
    number = _read(raw, int)
    return number if number is not None and number >= 0 else None


def read_float(raw: bytes | msgspec.Raw | None) -> float | None:
    """Return a JSON number; None when it is none."""
    return _read(raw, float)


def sum_ints(objects: Sequence[Members], name: str) -> int | None:
    """Return the sum of a member over several objects; None unless every one of them has it."""
    values = [value for each in objects if (value := read_int(each.get(name))) is not None]
    return sum(values) if values and len(values) == len(objects) else None


def is_json(raw: bytes) -> bool:
    """Whether these bytes are one JSON value."""
    return _read(raw, msgspec.Raw) is not None


def _read(raw: bytes | msgspec.Raw | None, kind: type[T]) -> T | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
