"""How alike two answers to one prompt are, and whether one looks broken by itself.

Texts are compared by pieces (a word or a mark with the space before it): about as many as tokens,
and the same whatever tokenizer an engine has.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_PIECES = 2000
"""Compared of each text: beyond it, only whether they are equal."""
_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])|\s+\Z")
_REPEATS = 24
"""Pieces in a row of which no more than one kind, or two in turn, is no answer."""


class Said(Struct, frozen=True):
    """One answer, read."""

    text: str = ""
    finish_reason: str = ""
    logprobs: tuple[float, ...] = ()
    """Of its tokens, where they were asked for."""


class Likeness(Struct, frozen=True):
    """How the second answer compares with the first."""

    exact: bool
    first_difference: int
    """Index of the first piece that differs; the number of pieces where none does."""
    distance: float
    """Edit distance over pieces, over the longer text's: 0 equal, 1 nothing in common."""
    same_finish: bool
    logprob_gap: float | None = None
    """Mean difference of the tokens' log probabilities, up to where texts part; None: not told."""


def pieces_of(text: str) -> list[str]:
    """Cut a text into pieces."""
    return _PIECE.findall(text)


def compare(one: Said, two: Said) -> Likeness:
    """Compare two answers. Costs up to some milliseconds."""
    same_finish = one.finish_reason == two.finish_reason
    mine, theirs = pieces_of(one.text)[:MOST_PIECES], pieces_of(two.text)[:MOST_PIECES]
    first = next(
        (i for i, (a, b) in enumerate(zip_longest(mine, theirs)) if a != b),
        len(mine),
    )
    exact = one.text == two.text
    distance = 0.0 if exact else edit_distance(mine, theirs) / max(len(mine), len(theirs), 1)
    return Likeness(exact, first, distance, same_finish, _gap(one, two, first))


def _gap(one: Said, two: Said, common: int) -> float | None:
    pairs = list(zip(one.logprobs, two.logprobs, strict=False))[: max(common, 1)]
    if not pairs:
        return None
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def edit_distance(one: Sequence[str], two: Sequence[str]) -> int:
    """Count the insertions, deletions and changes that make one sequence the other.

    Myers 1999 (J. ACM 46.3) as Hyyro 2003 has it: a column of the table is two numbers of as many
    bits as `one` is long, so a step is a few operations on long integers.
    """
    if not one or not two:
        return len(one) or len(two)
    places: dict[str, int] = {}
    for index, piece in enumerate(one):
        places[piece] = places.get(piece, 0) | 1 << index
    full, last = (1 << len(one)) - 1, 1 << len(one) - 1
    up, down, distance = full, 0, len(one)
    for piece in two:
        match = places.get(piece, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        raised, lowered = down | ~(diagonal | up) & full, up & diagonal
        distance += bool(raised & last) - bool(lowered & last)
        raised = (raised << 1 | 1) & full
        up, down = ((lowered << 1) & full) | ~(diagonal | raised) & full, raised & diagonal
    return distance


def is_repeated(text: str) -> bool:
    """Tell whether a text ends in, or is, one piece over and over: what NaN and loops look like."""
    bare = text.strip()
    tail = pieces_of(bare)[-_REPEATS:]
    if len(tail) == _REPEATS:
        return len(set(tail)) == 1 or (len(set(tail)) == 2 and tail[::2] == [tail[0]] * 12)
    return len(bare) >= _REPEATS and len(set(bare)) == 1


def is_json(text: str) -> bool:
    """Tell whether a text is one JSON value."""
    try:
        msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


class ShadowTally(Struct):
    """What the copies of one bucket showed; adds up."""

    copies: int = 0
    """Compared."""
    exact: int = 0
    same_finish: int = 0
    first_differences: dict[int, int] = {}
    """By the power of 2 that is just above the index, of those that differ."""
    distance: float = 0.0
    """Summed."""
    json_asked: int = 0
    json_first: int = 0
    json_second: int = 0
    logprob_gaps: int = 0
    logprob_gap: float = 0.0
    """Summed, over `logprob_gaps`."""
    sampled: int = 0
    """Copies whose prompt was not at temperature 0: their texts are not compared."""
    failed: int = 0
    dropped: int = 0
    """Not made, since there was no room."""

    def add(self, likeness: Likeness) -> None:
        """Count a pair that was compared."""
        self.copies += 1
        self.exact += likeness.exact
        self.same_finish += likeness.same_finish
        self.distance += likeness.distance
        if not likeness.exact:
            above = likeness.first_difference.bit_length()
            self.first_differences[above] = self.first_differences.get(above, 0) + 1
        if likeness.logprob_gap is not None:
            self.logprob_gaps += 1
            self.logprob_gap += likeness.logprob_gap

    def merge(self, other: ShadowTally) -> None:
        """Add another's counts."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, dict):
                added = Counter[int](mine)  # type: ignore[reportUnknownArgumentType]  # the one dict
                added.update(theirs)
                self.first_differences = dict(added)
            else:
                setattr(self, name, mine + theirs)
