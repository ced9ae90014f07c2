"""The nearest valid name, for errors about a misspelt one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name most like `word`, or None when none is."""
    by_folded = {name.casefold().replace("-", "_"): name for name in names}
    found = get_close_matches(word.casefold().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing."""
    name = nearest(word, names)
    return f"; did you mean '{name}'?" if name else ""
