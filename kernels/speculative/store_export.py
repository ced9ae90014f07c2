"""A store in the forms that other engines read.

SGLang's NGRAM reads a corpus of JSON lines, each a string of text, which it tokenises itself; so
what goes out is text, made by the caller's `decode`. llama.cpp's `--lookup-cache-static` is binary:
for each pair of tokens (four 32-bit ids, the last two -1) how many tokens followed it, and each
with its count.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["write_corpus", "write_lookup_cache"]

_MOST_FOLLOWING = 8


def write_lookup_cache(path: Path, answers: Iterable[tuple[int, list[int]]]) -> int:
    """Write llama.cpp's static lookup cache; returns how many pairs it holds."""
    following: dict[tuple[int, int], Counter[int]] = {}
    for _, tokens in answers:
        for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
            following.setdefault((a, b), Counter())[c] += 1
    with path.open("wb") as file:
        for (a, b), counts in following.items():
            top = counts.most_common(_MOST_FOLLOWING)
            file.write(struct.pack("<4ii", a, b, -1, -1, len(top)))
            for token, count in top:
                file.write(struct.pack("<ii", token, count))
    return len(following)


def write_corpus(
    path: Path, answers: Iterable[tuple[int, list[int]]], decode: Callable[[list[int]], str]
) -> int:
    """Write SGLang's corpus; returns how many answers it holds."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for _, tokens in answers:
            file.write(json.dumps(decode(tokens), ensure_ascii=False) + "\n")
            count += 1
    return count
