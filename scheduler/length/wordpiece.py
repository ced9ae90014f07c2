"""Words to token ids, by WordPiece over a vocabulary that fits the prompts seen in training.

Lower case, accents folded, each Han sign a word of its own. A word that the vocabulary lacks is cut
greedily into the longest pieces it has, so a small vocabulary still reads everything but rare
signs. Words already cut are remembered: most of a prompt's are among a few thousand.
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
_WORD = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3400-\u9fff\uf900-\ufaff]+|[^\w\s]|_")
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
        words = split(text)
        ids: list[int] = []
        if last:
            for word in reversed(words):
                ids[:0] = self.cut(word)
                if len(ids) >= most:
                    return ids[-most:]
            return ids
        for word in words:
            ids += self.cut(word)
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
        ids, start, size = self._ids, 0, len(word)
        found: list[int] = []
        while start < size:
            mark = "##" if start else ""
            for end in range(size, start, -1):
                piece = ids.get(mark + word[start:end])
                if piece is not None:
                    found.append(piece)
                    start = end
                    break
            else:
                return (UNKNOWN,)
        return found


def split(text: str) -> list[str]:
    """Return a text's words, in lower case and without accents."""
    text = text.lower()
    if _FOLDED.search(text):
        folded = unicodedata.normalize("NFD", text)
        text = "".join(sign for sign in folded if unicodedata.category(sign) != "Mn")
    return _WORD.findall(text)


def prune(vocabulary: Sequence[str], texts: Iterable[str], *, most: int) -> list[str]:
    """Return the part of a vocabulary that texts need, and the Han signs that it lacks.

    Kept are `SPECIAL`, single letters and signs, pieces the texts use, then what stands first in
    `vocabulary` (the commonest, by custom) until there are `most`.
    """
    full = WordPiece([*SPECIAL, *(piece for piece in vocabulary if piece not in SPECIAL)])
    used: Counter[int] = Counter()
    han: Counter[str] = Counter()
    for text in texts:
        words = split(text)
        used.update(piece for word in words for piece in full.cut(word))
        han.update(word for word in words if "\u3400" <= word <= "\ufaff")
    wanted = [piece for piece, count in han.most_common() if count > 1]
    short = [piece for piece in full.vocabulary[4:] if len(piece.removeprefix("##")) == 1]
    common = [full.vocabulary[number] for number, count in used.most_common() if count > 1]
    ordered = dict.fromkeys([*SPECIAL, *short, *common, *wanted, *full.vocabulary])
    keep = list(ordered)[: max(most, 4 + len(short))]
    return [*SPECIAL, *sorted(set(keep) - set(SPECIAL))]
