"""How values are written for people, on the page and on the command line."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Write a time in seconds; 0 is none."""
    return "-" if not value else f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
