"""Read a few values out of a Prometheus text, without parsing the rest.

An engine's answer is 50 to 500 kB, of which three or four lines are wanted every second. Each name
is searched for at the beginnings of lines; only the lines found are looked at.
"""

from __future__ import annotations

from math import isfinite


def read_values(text: bytes, name: bytes) -> list[float]:
    """Return the value of each sample of `name`, one a label set, in the text's order.

    Only the very name: `x` finds neither `x_total` nor `x_bucket`. Values that are no finite
    number say nothing, and are left out.
    """
    values: list[float] = []
    at = 0
    while (at := text.find(name, at)) >= 0:
        end = at + len(name)
        if (at == 0 or text[at - 1] == 10) and text[end : end + 1] in (b"{", b" ", b"\t"):
            value = _value(text, end)
            if value is not None:
                values.append(value)
        at = end
    return values


def read_total(text: bytes, name: bytes) -> int | None:
    """Return the sum over all label sets (one a data-parallel rank); None when there is none."""
    values = read_values(text, name)
    return max(0, int(sum(values))) if values else None


def read_highest(text: bytes, *names: bytes) -> float | None:
    """Return the highest value of the first name that has one; None when none has."""
    for name in names:
        values = read_values(text, name)
        if values:
            return max(values)
    return None


def read_labels(text: bytes, name: bytes, *labels: bytes) -> list[tuple[int | None, ...]]:
    """Return whole numbers among a sample's labels, a tuple for each sample of `name`."""
    found: list[tuple[int | None, ...]] = []
    at = 0
    while (at := text.find(name + b"{", at)) >= 0:
        end = text.find(b"\n", at)
        line = text[at : end if end >= 0 else len(text)]
        at += len(name)
        found.append(tuple(_label(line, label) for label in labels))
    return found


def _label(line: bytes, label: bytes) -> int | None:
    for before in (b"{", b","):
        _, found, rest = line.partition(before + label + b'="')
        value = rest.partition(b'"')[0]
        if found and value.isdigit() and len(value) < 16:
            return int(value)
    return None


def read_latest(text: bytes, name: bytes, *labels: bytes) -> tuple[str, ...]:
    """Return labels of the sample with the highest value, where that is a time; empty without."""
    latest, found = float("-inf"), ("",) * len(labels)
    at = 0
    while (at := text.find(name + b"{", at)) >= 0:
        end = text.find(b"\n", at)
        line = text[at : end if end >= 0 else len(text)]
        at += len(name)
        value = _value(line, len(name))
        if value is not None and value > latest:
            latest, found = value, tuple(_said(line, label) for label in labels)
    return found


def _said(line: bytes, label: bytes) -> str:
    for before in (b"{", b","):
        _, found, rest = line.partition(before + label + b'="')
        if found:
            return rest.partition(b'"')[0].decode("utf-8", "replace")
    return ""


def read_share(text: bytes, *names: bytes) -> float | None:
    """Return the highest value of the first name that has one, within 0 to 1."""
    value = read_highest(text, *names)
    return None if value is None else min(1.0, max(0.0, value))


def _value(text: bytes, at: int) -> float | None:
    line_end = text.find(b"\n", at)
    line = text[at : line_end if line_end >= 0 else len(text)]
    fields = line[_labels_end(line) :].split(None, 1)
    try:
        value = float(fields[0])
    except (IndexError, ValueError):
        return None
    return value if isfinite(value) else None


def _labels_end(line: bytes) -> int:
    # Where the labels end: a brace inside a quoted value does not count.
    if not line.startswith(b"{"):
        return 0
    quoted = escaped = False
    for at, byte in enumerate(line):
        if escaped:
            escaped = False
        elif byte == 0x5C:  # a backslash
            escaped = quoted
        elif byte == 0x22:  # a quotation mark
            quoted = not quoted
        elif byte == 0x7D and not quoted:  # a closing brace
            return at + 1
    return len(line)
