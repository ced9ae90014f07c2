"""Usage as people and scripts get it: from the ledger's rows to JSON, CSV and a table."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .quota.usage_rows import Row

COLUMNS = (
    "tenant",
    "model",
    "day",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cost",
)


def as_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as JSON has them."""
    return [{name: getattr(row, name) for name in COLUMNS} for row in rows]


def as_csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV, with a line of names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """Write rows as one JSON object."""
    return msgspec.json.encode({"rows": as_rows(rows)}).decode()


def as_table(rows: Sequence[Row]) -> str:
    """Write rows for people."""
    lines = [COLUMNS, *(tuple(_shown(getattr(row, name)) for name in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _shown(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    names = zip(cells[:3], widths[:3], strict=True)
    numbers = zip(cells[3:], widths[3:], strict=True)
    columns = [cell.ljust(width) for cell, width in names]
    return "  ".join([*columns, *(cell.rjust(width) for cell, width in numbers)])
