"""Makes text from outside safe to print: cut, and without characters that steer a terminal."""

from __future__ import annotations


def clean(text: str, limit: int = 128) -> str:
    """Return at most `limit` characters, what cannot be printed as an escape."""
    if len(text) <= limit and text.isprintable():
        return text
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else _escape(c) for c in shown)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
