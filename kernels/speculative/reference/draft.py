"""Drafts: rows of one verifying run, as a tree under the root, with who sees whom as bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["PROBE", "Draft", "chain", "tree_of"]

PROBE = -2


@dataclass(slots=True)
class Draft:
    """Rows of one run. Row 0 is the root; parents precede children.

    tokens, parents: one a row; a parent is a row's number, -1 for the root, PROBE for a row that
    only probes. depths: places after the root. sees: bit j is set where a row sees row j (itself
    included). chances: for a chain that was drawn at random, what it was drawn from, `[rows - 1,
    vocab]`; None where the way has no choice in its guesses.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    sees: list[int]
    chances: Any = None
    children: list[list[int]] = field(default_factory=list[list[int]])

    @classmethod
    def of(cls, root: int) -> Draft:
        """Make a draft of the root alone."""
        return cls([root], [-1], [0], [1], None, [[]])

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int) -> int:
        """Add a guess under a row and return its number."""
        row = len(self.tokens)
        self._append(token, parent, self.depths[parent] + 1, self.sees[parent] | 1 << row)
        self.children[parent].append(row)
        return row

    def probe(self, token: int, *, depth: int, sees: Iterable[int]) -> int:
        """Add a row that is run but never accepted; it sees the root, itself and what is told."""
        row = len(self.tokens)
        self._append(token, PROBE, depth, sum(1 << each for each in {0, row, *sees}))
        return row

    def path(self, row: int) -> list[int]:
        """Tokens from under the root down to a row."""
        tokens: list[int] = []
        while row > 0:
            tokens.append(self.tokens[row])
            row = self.parents[row]
        return tokens[::-1]

    def guesses(self) -> int:
        """How many rows guess."""
        return sum(parent >= 0 for parent in self.parents)

    def _append(self, token: int, parent: int, depth: int, sees: int) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(depth)
        self.sees.append(sees)
        self.children.append([])


def chain(root: int, tokens: Sequence[int]) -> Draft:
    """Make a draft of one guess after another."""
    draft = Draft.of(root)
    for row, token in enumerate(tokens):
        draft.add(token, row)
    return draft


def tree_of(root: int, branches: Iterable[Sequence[int]], *, most: int = 64) -> Draft:
    """Merge branches into one tree of at most so many rows; earlier branches go first."""
    draft = Draft.of(root)
    for branch in branches:
        row = 0
        for token in branch:
            found = next((c for c in draft.children[row] if draft.tokens[c] == token), None)
            if found is None:
                if len(draft) >= most:
                    break
                found = draft.add(token, row)
            row = found
    return draft
