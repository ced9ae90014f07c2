"""Numbers of the command line that are refused at once where they can mean nothing."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["number", "whole"]


def whole(least: int) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"'{text}' is no whole number of at least {least}")
        return int(text)

    return read


def number(least: float, *, most: float = math.inf) -> Callable[[str], float]:
    """Return a type for argparse: numbers from `least` to `most`."""
    bounds = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and math.isfinite(value)):
            raise ArgumentTypeError(f"'{text}' is no number {bounds}")
        return value

    return read
