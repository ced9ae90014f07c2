"""An array of contexts: every place of a text, sorted by what stands before it, read backwards.

The longest earlier match of the end of a history is then one binary search: its two neighbours in
the array hold it, and the places around them that match as far are all that do. The same structure
serves one prompt and a store of millions of answers. Tokens lie reversed and big-endian, so that a
context is one slice and slices compare as tokens do: 4 bytes for the token, 4 for its place in the
array, 8 a token in all.

Contexts are sorted to a depth of 16 tokens, by doubling: places are ranked by one token, by two, by
four. Deeper agreement is found by comparing, never by sorting. Every 128th context is kept as a
*fence* in a list, which is searched several times as fast as views of memory are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

__all__ = ["DEPTH", "SEPARATOR", "TOKEN_BYTES", "Contexts", "Guess", "pack", "sort_contexts"]

DEPTH = 16
TOKEN_BYTES = 4
SEPARATOR = 0xFFFFFFFF  # stands between answers and is never a token
_WIDTH = DEPTH * TOKEN_BYTES
_MARK = SEPARATOR.to_bytes(TOKEN_BYTES, "big")
_SIDE = 8  # places looked at on either side of the search's end
_STEP = 128  # ranks from fence to fence: .8 bytes a token


class Guess(NamedTuple):
    """What a source would draft: tokens, how sure it is of each, how long its match was."""

    tokens: list[int]
    shares: list[float]
    match: int


class Contexts:
    """Find where a history's end has occurred in a text, and what followed there.

    text: tokens reversed, 4 bytes each, big-endian; order: for each rank the number of tokens from
    its place to the text's end, which is where its context starts in `text`. Both may be views of a
    mapped file. Reading is safe from many threads.
    """

    __slots__ = ("_fences", "_order", "_text")

    def __init__(self, text: memoryview, order: memoryview) -> None:
        self._text = text
        self._order = order
        starts = (order[rank] * 4 for rank in range(0, len(order), _STEP))
        self._fences = [text[start : start + _WIDTH].tobytes() for start in starts]

    @classmethod
    def of(cls, tokens: array[int]) -> Contexts:
        """Sort one text, as `array('I')`; some 0.5 us a token, most of it outside Python's lock."""
        text, order = sort_contexts(tokens)
        return cls(memoryview(text), memoryview(order))

    def __len__(self) -> int:
        return len(self._order)

    def find(self, history: bytes) -> tuple[int, int]:
        """Return the rank beside which the longest match lies, and its length, 0 to DEPTH tokens.

        history: the last tokens, newest first, as `pack` gives them; DEPTH of them are used.
        """
        text = self._text
        wanted = history[:_WIDTH]
        width = len(wanted)
        fence = bisect_left(self._fences, wanted)
        rank = bisect_left(
            self._order,
            wanted,
            max(0, (fence - 1) * _STEP + 1),
            min(fence * _STEP, len(self._order)),
            key=lambda at: text[at * 4 : at * 4 + width].tobytes(),
        )
        best, found = 0, 0
        for near in (rank, rank - 1):
            if 0 <= near < len(self._order):
                length = self._agree(near, wanted)
                if length > best:
                    best, found = length, near
        return found, best

    def guess(self, history: bytes, most: int) -> Guess:
        """Draft up to `most` tokens by the majority of the longest match's places."""
        rank, match = self.find(history)
        return self.follow(rank, history[: match * 4], most) if match else Guess([], [], 0)

    def follow(self, rank: int, matched: bytes, most: int) -> Guess:
        """Draft from around a rank that `find` told, where contexts start with `matched`."""
        return Guess(*self._vote(self._places(rank, matched), most), len(matched) // TOKEN_BYTES)

    def continuations(self, history: bytes, most: int) -> list[list[int]]:
        """Return what followed at each of the longest match's places, for a tree of guesses."""
        rank, match = self.find(history)
        if not match:
            return []
        found = (self._after(at, most) for at in self._places(rank, history[: match * 4]))
        return [tokens for tokens in found if tokens]

    def _agree(self, rank: int, wanted: bytes) -> int:
        start = self._order[rank] * 4
        there = self._text[start : start + len(wanted)].tobytes()
        width = len(there)
        if there == wanted[:width]:
            return width // 4
        differing = int.from_bytes(there, "big") ^ int.from_bytes(wanted[:width], "big")
        return (width * 8 - differing.bit_length()) // 32

    def _places(self, rank: int, matched: bytes) -> list[int]:
        """Find places around a rank whose context starts with `matched`."""
        text, order, width = self._text, self._order, len(matched)
        places = [order[rank]]
        for step, last in ((-1, max(-1, rank - _SIDE)), (1, min(len(order), rank + _SIDE))):
            for near in range(rank + step, last, step):
                at = order[near]
                if text[at * 4 : at * 4 + width].tobytes() != matched:
                    break
                places.append(at)
        return places

    def _vote(self, places: list[int], most: int) -> tuple[list[int], list[float]]:
        """Follow the most frequent token, on a tie the newest place's, while places differ."""
        text = self._text
        tokens: list[int] = []
        shares: list[float] = []
        share = 1.0
        if len({text[max(0, at - most) * 4 : at * 4].tobytes() for at in places}) == 1:
            places = places[:1]
        while places and len(tokens) < most:
            if len(places) == 1:
                rest = self._after(places[0], most - len(tokens))
                return tokens + rest, shares + [share] * len(rest)
            heard: dict[bytes, list[int]] = {}
            for at in places:
                if at:
                    heard.setdefault(text[at * 4 - 4 : at * 4].tobytes(), []).append(at - 1)
            if not heard:
                break
            token = max(heard, key=lambda each: (len(heard[each]), -min(heard[each])))
            if token == _MARK:
                break
            share *= len(heard[token]) / len(places)
            places = heard[token]
            tokens.append(int.from_bytes(token, "big"))
            shares.append(share)
        return tokens, shares

    def _after(self, at: int, most: int) -> list[int]:
        start = max(0, at - most)
        following = array("I", self._text[start * 4 : at * 4].tobytes())
        following.byteswap()
        following.reverse()
        tokens = following.tolist()
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens


def pack(tokens: array[int]) -> bytes:
    """Turn `array('I')` into the bytes of a history: newest token first, big-endian."""
    turned = tokens[::-1]
    turned.byteswap()
    return turned.tobytes()


def sort_contexts(tokens: array[int], *, depth: int = DEPTH) -> tuple[bytes, array[int]]:
    """Return `text` and `order` for `Contexts`; 0.5 to 4 us a token, 40 bytes a token meanwhile."""
    import numpy as np  # noqa: PLC0415 - reading a store needs none

    count = len(tokens)
    text = pack(tokens)
    if not count:
        return text, array("I")
    # Reversed, a context is a suffix: rank suffixes by their first 1, 2, 4, ... tokens.
    turned = np.frombuffer(tokens, dtype=np.uint32)[::-1]
    ranks = np.unique(turned, return_inverse=True)[1].astype(np.int64) + 1
    known = 1
    while True:
        later = np.zeros_like(ranks)
        later[:-known] = ranks[known:]
        keys = ranks * (count + 2) + later
        places = np.argsort(keys, kind="stable")
        known *= 2
        keys = keys[places]
        fresh = np.ones(count, dtype=np.int64)
        fresh[1:] = keys[1:] != keys[:-1]
        numbers = fresh.cumsum()
        if known >= depth or int(numbers[-1]) == count:
            break
        ranks[places] = numbers
    # The text's own end is no place: nothing follows it.
    order = array("I")
    order.frombytes(places[places > 0].astype(np.uint32).tobytes())
    return text, order
