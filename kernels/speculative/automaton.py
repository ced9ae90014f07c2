"""A suffix automaton of one answer, grown token by token.

After each token it knows the longest end of the text that has occurred before, and where: what
prompt lookup finds by n-grams, here without a limit on their length and in amortised constant time.

The automaton (Blumer et al., 1985) has a state for each set of places where some substrings end;
`link` leads to the state of the longest proper suffix that ends elsewhere too. The match is
followed as a state and a length while tokens come: when a token does not continue it, links shorten
it.
"""

from __future__ import annotations

__all__ = ["SuffixAutomaton"]


class SuffixAutomaton:
    """Grow with `add`; `match` tokens at the end occurred before, ending just before place `after`.

    Some 400 bytes a token and 2 us to add one. Not for concurrent use.
    """

    __slots__ = ("_end", "_last", "_length", "_link", "_next", "_state", "match", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.match = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]  # a place where the state's substrings ended: the first, or where cloned
        self._last = 0
        self._state = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def after(self) -> int:
        """Place in `tokens` of what followed the earlier occurrence."""
        return self._end[self._state]

    def following(self, most: int) -> list[int]:
        """Copy what followed the earlier occurrence, over its own end where it is a loop."""
        start = self.after
        tokens = self.tokens[start : start + most]
        period = len(self.tokens) - start
        while period and len(tokens) < most:
            tokens.append(tokens[-period])
        return tokens

    def add(self, token: int) -> None:
        """Take in one token."""
        # Followed first: the match must end before this very token does.
        self.follow(token)
        self._grow(token)
        self.tokens.append(token)
        # Growing may have split the state that the match lies in.
        state = self._state
        while state and self._length[self._link[state]] >= self.match:
            state = self._link[state]
        self._state = state

    def follow(self, token: int) -> None:
        """Move the match over one token without taking it in."""
        state, match = self._state, self.match
        while state and token not in self._next[state]:
            state = self._link[state]
            match = self._length[state]
        to = self._next[state].get(token)
        self._state, self.match = (0, 0) if to is None else (to, match + 1)

    def _grow(self, token: int) -> None:
        nexts, link, length = self._next, self._link, self._length
        new = self._new({}, 0, length[self._last] + 1, len(self.tokens) + 1)
        state = self._last
        self._last = new
        while state >= 0 and token not in nexts[state]:
            nexts[state][token] = new
            state = link[state]
        if state < 0:
            return
        to = nexts[state][token]
        if length[to] == length[state] + 1:
            link[new] = to
            return
        split = self._new(nexts[to].copy(), link[to], length[state] + 1, self._end[to])
        while state >= 0 and nexts[state].get(token) == to:
            nexts[state][token] = split
            state = link[state]
        link[to] = link[new] = split

    def _new(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._link) - 1
