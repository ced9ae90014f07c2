"""A prompt's text as numbers: hashed n-grams, and what can be counted.

Only the head and the tail of a long prompt are looked at, so the cost has a bound: instructions
stand at either end. Hashing needs no vocabulary, so any language will do, and is one pass of numpy
over code points: a fraction of a millisecond where scikit-learn's own takes several.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from .stated import stated_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD_CHARS = 1000
TAIL_CHARS = 500
BUCKETS = 1 << 18
"""Hashed n-grams share so many columns."""
_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_PRIMES = (np.uint32(2654435761), np.uint32(2246822519), np.uint32(3266489917))
_CHAR_GRAMS = (1, 2, 3, 4)
_WORD_SALT = 0x9E37
_MOST_REMEMBERED = 20_000


def ends(text: str) -> str:
    """Return a prompt's head and tail, in lower case; the whole of it where it is short."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text.lower()
    return (text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:]).lower()


def hashed_grams(text: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return columns and values of a text's n-grams: character 1-4, word 1-2.

    `text` comes from `ends`. Values are 1 + log(count), so that each column appears once.
    """
    columns = np.concatenate([*_char_grams(text), _word_grams(text)])
    ordered = np.sort(columns.astype(np.int32))  # half as wide, sorted in half the time
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.diff(starts, append=len(ordered))
    return ordered[starts].astype(np.int64), (1.0 + np.log(counts)).astype(np.float32)


def _char_grams(text: str) -> list[NDArray[np.int64]]:
    points = np.frombuffer(f" {text} ".encode("utf-32-le", "replace"), dtype=np.uint32)
    rolled = np.zeros(len(points), dtype=np.uint32)
    grams: list[NDArray[np.int64]] = []
    for size in _CHAR_GRAMS:
        if len(points) < size:
            break
        shifted = points[size - 1 :]
        rolled = (rolled[: len(shifted)] * _PRIMES[0] + shifted) * _PRIMES[1]
        mixed = (rolled ^ (rolled >> np.uint32(15))) * _PRIMES[2] + np.uint32(size)
        grams.append(((mixed >> np.uint32(7)) % np.uint32(BUCKETS)).astype(np.int64))
    return grams


class _Hashes(dict[str, int]):
    """Hashes of words, remembered: most of a prompt's are common."""

    def __missing__(self, word: str) -> int:
        self[word] = crc32(word.encode("utf-8", "replace"), _WORD_SALT)
        return self[word]


_hashes = _Hashes()


def _word_grams(text: str) -> NDArray[np.int64]:
    if len(_hashes) > _MOST_REMEMBERED:
        _hashes.clear()
    found = list(map(_hashes.__getitem__, _WORD.findall(text)))
    hashes = np.array(found, dtype=np.int64)
    pairs = (hashes[:-1] * 31 + hashes[1:] * 17 + 5) & 0xFFFFFFFF
    return np.concatenate((hashes, pairs)) % BUCKETS


_HAN = re.compile(r"[\u3400-\u9fff]")
_CODE = "{}();=<>[]"
_DIGIT = re.compile(r"\d")
COUNTED = 16
"""Numbers that `counted` returns."""


def counted(text: str) -> list[float]:
    """Return what can be counted in a whole prompt, each about 0 to 3; `COUNTED` numbers."""
    size = len(text)
    looked = text if size <= 3000 else text[:2000] + text[-1000:]
    some = max(1, len(looked))
    han = len(_HAN.findall(looked)) / some if not looked.isascii() else 0.0
    tokens = size * (0.25 + 0.5 * han)
    stated = stated_tokens(looked)
    log = np.log1p
    return [
        float(log(size)) / 4,
        float(log(tokens)) / 3,
        float(log(looked.count("\n"))) / 2,
        float(log(looked.count("?") + looked.count("\uff1f"))),
        len(_DIGIT.findall(looked[:600])) / min(some, 600) * 4,
        han,
        sum(map(looked.count, _CODE)) / some * 10,
        1.0 if "```" in looked else 0.0,
        1.0 if stated else 0.0,
        float(log(stated)) / 3,
        1.0 if stated > 700 else 0.0,
        1.0 if 0 < stated < 80 else 0.0,
        1.0 if size < 60 else 0.0,
        1.0 if size > HEAD_CHARS + TAIL_CHARS else 0.0,
        1.0 if looked.rstrip()[-1:] in ("?", "\uff1f") else 0.0,
        1.0 if "\\" in looked or "$" in looked else 0.0,
    ]
