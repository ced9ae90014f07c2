"""Numbers with units: `30s`, `32MiB`, `200k`, `10%` become seconds, bytes, counts and shares.

Each function takes what YAML or Python code gives and raises ValueError with what to write instead.
A text that came from the environment (`Substituted`) is never repeated in a message.
"""

from __future__ import annotations

import re

_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_COUNTS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3}
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([A-Za-z%]*)", re.ASCII)
_LONGEST = 40
_LONGEST_S = 366 * 86400.0
_LARGEST = 10**18


class Substituted(str):
    """A text with something from the environment in it: a secret, for all we know."""

    __slots__ = ()


def shown(value: object) -> str:
    """Return a value as error texts may show it."""
    if isinstance(value, Substituted):
        return "the value from the environment"
    text = str(value)
    return f"'{text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}'"


def parse_duration(value: object) -> float:
    """Return seconds. A bare number other than 0 is refused: nobody can see what it means."""
    if _is_number(value) and value == 0:
        return 0.0
    number, unit = _split(value, "a duration such as 500ms, 30s, 5m, 2h or 1d")
    if unit not in _DURATIONS:
        raise _wrong_unit(value, unit, _DURATIONS)
    seconds = number * _DURATIONS[unit]
    if seconds > _LONGEST_S:
        raise ValueError(f"{shown(value)} is longer than a year")
    return seconds


def parse_bytes(value: object) -> int:
    """Return bytes. A bare whole number is bytes."""
    number, unit = _split(value, "a size such as 64KiB, 32MiB, 1GiB or 10MB")
    factor = _BYTES.get(unit or "B")
    if factor is None:
        raise _wrong_unit(value, unit, _BYTES)
    return _whole(number * factor, value, "bytes")


def parse_count(value: object) -> int:
    """Return a whole number; `k`, `M` and `G` are thousands, millions and thousand millions."""
    number, unit = _split(value, "a count such as 500, 200k or 20M")
    if unit not in _COUNTS:
        raise _wrong_unit(value, unit, _COUNTS)
    return _whole(number * _COUNTS[unit], value, "things")


def parse_share(value: object) -> float:
    """Return a share of one: `0.1` and `10%` are the same."""
    number, unit = _split(value, "a share such as 0.1 or 10%")
    if unit not in {"", "%"}:
        raise _wrong_unit(value, unit, {"%": 1})
    return number / 100 if unit else number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _split(value: object, wanted: str) -> tuple[float, str]:
    if _is_number(value):
        assert isinstance(value, int | float)
        if not 0 <= value <= _LARGEST:
            raise ValueError(f"must be {wanted}, not {shown(value)}")
        return value, ""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        what = shown(value) if isinstance(value, str | bool) else _kind(value)
        raise ValueError(f"must be {wanted}, not {what}")
    digits = match[1]
    return float(digits) if "." in digits else int(digits), match[2]


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def _wrong_unit(value: object, unit: str, units: dict[str, float] | dict[str, int]) -> ValueError:
    known = ", ".join(name for name in units if name)
    if not unit:
        return ValueError(f"{shown(value)} has no unit; write one of {known} after it")
    if isinstance(value, Substituted):
        return ValueError(f"{shown(value)} has a wrong unit; use one of {known}")
    return ValueError(f"'{unit}' in {shown(value)} is no unit here; use one of {known}")


def _whole(number: float, value: object, things: str) -> int:
    if number != int(number):
        raise ValueError(f"{shown(value)} is no whole number of {things}")
    return int(number)
