"""The nearest valid name, for errors about a misspelt one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name most like `word`, or None when none is."""
    by_folded = {_folded(name): name for name in names}
    found = get_close_matches(_folded(word), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else _only_with_part(_folded(word), by_folded)


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def _only_with_part(word: str, by_folded: Mapping[str, str]) -> str | None:
    """Return the one name of several words of which `word` is, about, one."""
    found = [
        name
        for folded, name in by_folded.items()
        if get_close_matches(word, folded.split("_"), n=1, cutoff=0.75)
    ]
    return found[0] if len(found) == 1 else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing."""
    name = nearest(word, names)
    return f"; did you mean '{name}'?" if name else ""
