"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - argparse gives this type no public name


def port(text: str) -> int:
    """Return a port number; 0 lets the system choose."""
    number = int(text) if text.isdecimal() and len(text) < 6 else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port (0 to 65535)")
    return number


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def above_zero(text: str) -> float:
    """Return a number above 0, and not infinite."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return number


def numbers(text: str) -> list[int]:
    """Return comma-separated whole numbers of at least 1."""
    return [positive(part.strip()) for part in text.split(",")]
