"""Words to token ids, by WordPiece over a vocabulary that fits the prompts seen in training.

Lower case, accents folded. A word that the vocabulary lacks is cut greedily into the longest pieces
it has, so a small vocabulary still reads everything but rare signs. Han signs have no spaces
between words: a run of them is cut as one, and a sign that is not known leaves the rest readable.
Words already cut are remembered: most of a prompt's are among a few thousand.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAD, UNKNOWN, START, END = range(4)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_HAN = r"\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_HAN}]{{1,12}}|[^\W_{_HAN}]+|[^\w\s]|_")
_FOLDED = re.compile(r"[^\x00-\x7f\u2000-\u206f\u3000-\u303f\u3400-\u9fff\uff00-\uff60]")
"""Signs that may have accents: folding a long Chinese prompt takes as long as cutting it."""
_LONGEST_WORD = 40
_MOST_REMEMBERED = 20_000


class WordPiece:
    """Cuts text into ids of a vocabulary whose first four entries are `SPECIAL`."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        if tuple(vocabulary[:4]) != SPECIAL:
            raise ValueError(f"a vocabulary begins with {', '.join(SPECIAL)}")
        self.vocabulary = tuple(vocabulary)
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, text: str, most: int, *, last: bool = False) -> list[int]:
        """Return the first `most` ids of a text, or its last."""
        text, ids = folded(text), list[int]()
        if last:
            for word in reversed(_WORD.findall(text)):
                ids[:0] = self.cut(word)
                if len(ids) >= most:
                    return ids[-most:]
            return ids
        for match in _WORD.finditer(text):  # most of a long prompt's words are not needed
            ids += self.cut(match[0])
            if len(ids) >= most:
                return ids[:most]
        return ids

    def cut(self, word: str) -> tuple[int, ...]:
        """Return the ids of one word."""
        known = self._known.get(word)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[word] = tuple(self._pieces(word[:_LONGEST_WORD]))
        return known

    def _pieces(self, word: str) -> Iterable[int]:
        ids, start, size, han = self._ids, 0, len(word), is_han(word[0])
        found: list[int] = []
        while start < size:
            mark = "##" if start and not han else ""
            for end in range(size, start, -1):
                piece = ids.get(mark + word[start:end])
                if piece is not None:
                    found.append(piece)
                    start = end
                    break
            else:
                if not han:
                    return (UNKNOWN,)
                found.append(UNKNOWN)
                start += 1
        return found


def split(text: str) -> list[str]:
    """Return a text's words, in lower case and without accents."""
    return _WORD.findall(folded(text))


def folded(text: str) -> str:
    """Return a text in lower case and without accents."""
    text = text.lower()
    if not _FOLDED.search(text):
        return text
    return unicodedata.normalize("NFD", text).translate(_ACCENTS)


class _Accents(dict[int, int | None]):
    """What becomes of each sign that was met: an accent goes."""

    def __missing__(self, sign: int) -> int | None:
        self[sign] = None if unicodedata.category(chr(sign)) == "Mn" else sign
        return self[sign]


_ACCENTS = _Accents()


def is_han(sign: str) -> bool:
    """Tell whether a sign stands for a Chinese word or a part of one."""
    return "\u3400" <= sign <= "\u9fff" or "\uf900" <= sign <= "\ufaff"


def prune(vocabulary: Sequence[str], texts: Iterable[str], *, most: int) -> list[str]:
    """Return the part of a vocabulary that texts need, and the signs that it lacks.

    Kept are `SPECIAL`, letters and signs of ASCII, the pieces and Han signs that texts use more
    than once, the commonest first, then what stands first in `vocabulary` (the commonest, by
    custom) until there are `most`.
    """
    full = WordPiece([*SPECIAL, *(piece for piece in vocabulary if piece not in SPECIAL)])
    used: Counter[str] = Counter()
    for text in texts:
        for word in split(text):
            used.update(full.vocabulary[piece] for piece in full.cut(word) if piece > END)
            if is_han(word[0]) or (len(word) == 1 and full.cut(word) == (UNKNOWN,)):
                used.update(word)
    short = [piece for piece in full.vocabulary[4:] if _is_plain(piece.removeprefix("##"))]
    common = [piece for piece, count in used.most_common() if count > 1]
    ordered = list(dict.fromkeys([*SPECIAL, *short, *common, *full.vocabulary]))
    keep = ordered[: max(most, 4 + len(short))]
    return [*SPECIAL, *sorted(set(keep) - set(SPECIAL))]


def _is_plain(piece: str) -> bool:
    return len(piece) == 1 and piece.isascii()
