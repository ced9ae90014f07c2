"""A long prompt's tokens on a short line: the ends one by one, the rest eight to a slot.

What an encoder costs grows with its positions, and instructions stand at the ends of a prompt. So
the first 96 and the last 32 tokens take at most `SLOTS` positions: the outer ones alone, the inner
ones as the mean of eight neighbours. A prompt that fits in is read token by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .wordpiece import END, PAD, START

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .wordpiece import WordPiece

HEAD, TAIL = 96, 32
SLOTS = 40
WIDTH = 8
"""Tokens that a slot has room for."""
TAIL_AT = 256
"""Position at which a tail begins: another one than any head's."""
_CHARS_PER_TOKEN = 8


class Reading(NamedTuple):
    """How much of a prompt is read, and how closely."""

    head: int = HEAD
    tail: int = TAIL
    short: int = SLOTS - 2
    """Tokens up to which each is read alone."""
    slots: int = SLOTS - 2
    """For those of a longer prompt."""


BRIEF = Reading()
"""What there is time for when a request waits."""
WHOLE = Reading(192, 96, 94, 94)
"""What a teacher reads: it has all the time there is."""


def slots_of(
    text: str, wordpiece: WordPiece, how: Reading = BRIEF
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return token ids [S, 8], padded with 0, and positions [S] of a prompt."""
    both = how.head + how.tail
    ids = wordpiece(text[: both * _CHARS_PER_TOKEN], both + 1)
    if len(ids) <= how.short:
        ids = [START, *ids, END]
        return _alone(ids), np.arange(len(ids), dtype=np.int64)
    cut = len(ids)
    if cut > both:
        cut = how.head
        ids[cut:] = wordpiece(text[-how.tail * _CHARS_PER_TOKEN :], how.tail, last=True)
    # As many alone as leave room for the rest in groups; three of four of them at the front.
    alone = (WIDTH * (how.slots - 1) - len(ids)) // (WIDTH - 1)
    last = len(ids) - alone // 4
    first = alone - alone // 4
    cut = min(max(cut, first), last)
    parts = (
        _alone([START, *ids[:first]]),
        _grouped(ids[first:cut]),
        _grouped(ids[cut:last]),
        _alone([*ids[last:], END]),
    )
    head = len(parts[0]) + len(parts[1])
    tail = len(parts[2]) + len(parts[3])
    positions = np.concatenate((np.arange(head), np.arange(TAIL_AT, TAIL_AT + tail)))
    return np.concatenate(parts), positions.astype(np.int64)


def _alone(ids: list[int]) -> NDArray[np.int64]:
    slots = np.full((len(ids), WIDTH), PAD, dtype=np.int64)
    slots[:, 0] = ids
    return slots


def _grouped(ids: list[int]) -> NDArray[np.int64]:
    padded = [*ids, *([PAD] * (-len(ids) % WIDTH))]
    return np.array(padded, dtype=np.int64).reshape(-1, WIDTH)
