# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""What the command line says, refused at once where it can mean nothing."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["device", "number", "whole"]


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


def device(name: str) -> str:
    """Return a device that PyTorch can use; `auto` is a GPU where there is one.

    Raises ValueError.
    """
    import torch  # noqa: PLC0415 - --help needs none

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (AssertionError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"--device {name} cannot be used here: {said}") from None
    return name
