# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Lookahead decoding: n-grams of the target's own, guessed by Jacobi iteration beside the answer.

Each run carries, besides the candidates to verify, a window of `columns` guesses on each of `size -
1` levels. A level's tokens are one iteration older than the next's; a column read down, with the
token that the run yields below it, is an n-gram that the target itself would write, and goes into a
pool under its first token. Candidates are the pool's n-grams under the root.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from .draft import Draft, tree_of

if TYPE_CHECKING:
    from .engine import Row, Verified

__all__ = ["Lookahead"]

_KEYS = 4096


class _State:
    """Window and pool of one request."""

    def __init__(self, window: list[list[int]]) -> None:
        self.window = window
        self.pool: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()
        self.first = 0  # the window's first row in the draft under way


class Lookahead:
    """columns: guesses side by side; size: tokens of an n-gram; kept: n-grams under one token."""

    name = "lookahead"
    features: tuple[int, ...] = ()
    lossless = True

    def __init__(self, *, columns: int = 8, size: int = 4, kept: int = 7, most: int = 64) -> None:
        if 1 + columns * (size - 1) >= most:
            raise ValueError(
                "the window leaves no row for candidates: fewer columns, or a smaller size"
            )
        self.columns = columns
        self.size = size
        self.kept = kept
        self.most = most

    def start(self, row: Row, told: Verified) -> None:
        """Begin with tokens of the prompt as guesses, and with the prompt's own n-grams."""
        del told
        prompt = row.request.prompt
        level = [prompt[at % len(prompt)] for at in range(self.columns)]
        row.state = _State([level[:] for _ in range(self.size - 1)])
        for at in range(max(0, len(prompt) - 512), len(prompt) - self.size + 1):
            self._pool(row.state, prompt[at], tuple(prompt[at + 1 : at + self.size]))

    def propose(self, row: Row, room: int) -> Draft:
        """Put candidates and window into one draft."""
        state: _State = row.state
        rows = self.columns * (self.size - 1)
        known = reversed(state.pool.get(row.tokens[-1], OrderedDict()))
        draft = tree_of(row.tokens[-1], (g[:room] for g in known), most=self.most - rows)
        state.first = len(draft)
        for level, tokens in enumerate(state.window):
            for column, token in enumerate(tokens):
                left = range(state.first, state.first + column + 1)
                above = (state.first + j * self.columns + column for j in range(1, level))
                draft.probe(token, depth=column + level + 1, sees=(*left, *above))
        return draft

    def observe(self, row: Row, told: Verified) -> None:
        """Read n-grams off the columns, then move the window up a level."""
        state: _State = row.state
        last = state.first + (self.size - 2) * self.columns
        fresh = told.logits[last : last + self.columns].argmax(-1).tolist()
        for column in range(self.columns):
            gram = [level[column] for level in state.window] + [fresh[column]]
            self._pool(state, gram[0], tuple(gram[1:]))
        state.window = [*state.window[1:], fresh]

    def _pool(self, state: _State, key: int, gram: tuple[int, ...]) -> None:
        grams = state.pool.setdefault(key, OrderedDict())
        state.pool.move_to_end(key)
        grams[gram] = None
        grams.move_to_end(gram)
        if len(grams) > self.kept:
            grams.popitem(last=False)
        if len(state.pool) > _KEYS:
            state.pool.popitem(last=False)
