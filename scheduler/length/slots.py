"""A long prompt's tokens on a short line: the ends one by one, the rest eight to a slot.

What an encoder costs grows with its positions, and instructions stand at the ends of a prompt. So
the first 96 and the last 32 tokens take at most `SLOTS` positions: the outer ones alone, the inner
ones as the mean of eight neighbours. With 128 and 64 a prediction takes a tenth longer and is no
better (docs/length-prediction.md). A prompt of at most `SLOTS` tokens is read token by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .wordpiece import END, PAD, START

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .wordpiece import WordPiece

HEAD, TAIL = 96, 32
SLOTS = 48
WIDTH = 8
"""Tokens that a slot has room for."""
_HEAD_ALONE = 18
_TAIL_ALONE = 6
TAIL_AT = 256
"""Position at which a tail begins: another one than any head's."""
_CHARS_PER_TOKEN = 8


def slots_of(text: str, wordpiece: WordPiece) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return token ids [S, 8], padded with 0, and positions [S] of a prompt; S <= SLOTS."""
    head = wordpiece(text[: (HEAD + TAIL) * _CHARS_PER_TOKEN], HEAD + TAIL + 1)
    if len(head) <= SLOTS - 2:
        ids = [START, *head, END]
        return _alone(ids), np.arange(len(ids), dtype=np.int64)
    tail = wordpiece(text[-TAIL * _CHARS_PER_TOKEN :], TAIL, last=True)
    if len(head) <= HEAD + TAIL:
        tail = head[HEAD:]
    head = head[:HEAD]
    parts = (
        _alone([START, *head[:_HEAD_ALONE]]),
        _grouped(head[_HEAD_ALONE:]),
        _grouped(tail[:-_TAIL_ALONE]),
        _alone([*tail[-_TAIL_ALONE:], END]),
    )
    first = len(parts[0]) + len(parts[1])
    last = len(parts[2]) + len(parts[3])
    positions = np.concatenate((np.arange(first), np.arange(TAIL_AT, TAIL_AT + last)))
    return np.concatenate(parts), positions.astype(np.int64)


def _alone(ids: list[int]) -> NDArray[np.int64]:
    slots = np.full((len(ids), WIDTH), PAD, dtype=np.int64)
    slots[:, 0] = ids
    return slots


def _grouped(ids: list[int]) -> NDArray[np.int64]:
    padded = [*ids, *([PAD] * (-len(ids) % WIDTH))]
    return np.array(padded, dtype=np.int64).reshape(-1, WIDTH)
