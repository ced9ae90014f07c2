# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Ways that guess from text alone: prompt lookup, suffix automaton, retrieval, and all in one."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.kernels.speculative.automaton import SuffixAutomaton
from forebay.kernels.speculative.contexts import DEPTH, Contexts, pack
from forebay.kernels.speculative.drafter import Drafter, History

from .draft import Draft, chain, tree_of

if TYPE_CHECKING:
    from .engine import Row, Verified

__all__ = ["Combined", "PromptLookup", "Retrieval", "Suffix"]


@dataclass(slots=True)
class _Seen:
    """Where each n-gram was last followed by something, and how many tokens were looked at."""

    last: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    noted: int = 0


class PromptLookup:
    """The newest place where the last n tokens stood before, n from `longest` down to 1."""

    name = "prompt-lookup"
    features: tuple[int, ...] = ()
    lossless = True

    def __init__(self, *, longest: int = 3, most: int = 10) -> None:
        self.longest = longest
        self.most = most

    def start(self, row: Row, told: Verified) -> None:
        """Note where each n-gram was last followed by something."""
        del told
        row.state = _Seen()
        self._note(row)

    def observe(self, row: Row, told: Verified) -> None:
        """Note the new tokens' n-grams."""
        del told
        self._note(row)

    def propose(self, row: Row, room: int) -> Draft:
        """Copy what followed."""
        tokens = row.tokens
        for n in range(min(self.longest, len(tokens)), 0, -1):
            at = row.state.last.get(tuple(tokens[-n:]))
            if at is not None:
                return chain(tokens[-1], tokens[at : at + min(self.most, room)])
        return Draft.of(tokens[-1])

    def _note(self, row: Row) -> None:
        tokens, seen = row.tokens, row.state
        # Up to, and without, the last token: what ends there is followed by nothing yet.
        for end in range(max(1, seen.noted), len(tokens)):
            for n in range(1, min(self.longest, end) + 1):
                seen.last[tuple(tokens[end - n : end])] = end
        seen.noted = len(tokens)


class Suffix:
    """The longest end of prompt and answer that stood before."""

    name = "suffix"
    features: tuple[int, ...] = ()
    lossless = True

    def __init__(self, *, most: int = 10) -> None:
        self.most = most

    def start(self, row: Row, told: Verified) -> None:
        """Read the prompt."""
        del told
        row.state = SuffixAutomaton()
        self._read(row)

    def observe(self, row: Row, told: Verified) -> None:
        """Read the new tokens."""
        del told
        self._read(row)

    def propose(self, row: Row, room: int) -> Draft:
        """Copy what followed."""
        if not row.state.match:
            return Draft.of(row.tokens[-1])
        return chain(row.tokens[-1], row.state.following(min(self.most, room)))

    def _read(self, row: Row) -> None:
        for token in row.tokens[len(row.state) :]:
            row.state.add(token)


class Retrieval:
    """REST: a tree of what followed the longest matches in a store of past answers."""

    name = "rest"
    features: tuple[int, ...] = ()
    lossless = True

    def __init__(self, contexts: Contexts, *, most: int = 10, nodes: int = 32) -> None:
        self.contexts = contexts
        self.most = most
        self.nodes = nodes

    def start(self, row: Row, told: Verified) -> None:
        """Nothing to keep."""

    def observe(self, row: Row, told: Verified) -> None:
        """Nothing to learn."""

    def propose(self, row: Row, room: int) -> Draft:
        """Merge continuations, more frequent beginnings first."""
        recent = pack(array("I", row.tokens[-DEPTH:]))
        found = self.contexts.continuations(recent, min(self.most, room))
        heard: dict[tuple[int, ...], int] = {}
        for tokens in found:
            for n in range(1, len(tokens) + 1):
                heard[tuple(tokens[:n])] = heard.get(tuple(tokens[:n]), 0) + 1
        # A beginning is at least as frequent as what goes on from it, and shorter: the most
        # frequent beginnings are a tree.
        ranked = sorted(heard, key=lambda each: (-heard[each], len(each)))
        return tree_of(row.tokens[-1], ranked[: self.nodes], most=self.nodes + 1)


class Combined:
    """The drafter that the engines' plugins run."""

    name = "lookup+suffix+rest"
    features: tuple[int, ...] = ()
    lossless = True

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    def start(self, row: Row, told: Verified) -> None:
        """Take in prompt and first token."""
        del told
        row.state = History(array("I", row.request.prompt))
        row.state.extend(row.answer)

    def observe(self, row: Row, told: Verified) -> None:
        """Take in the step's tokens."""
        del told
        new = row.tokens[len(row.state.tokens) :]
        self.drafter.settle(row.state, new)
        row.state.extend(new)

    def propose(self, row: Row, room: int) -> Draft:
        """Ask the drafter."""
        return chain(row.tokens[-1], self.drafter.propose(row.state, room=room))
