# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: PLR0913
# (a drafting has many knobs)
"""EAGLE: a head goes on from the target's features, as a chain or as a tree.

The dynamic tree (EAGLE-2, and EAGLE-3's too): at each depth the head runs on the `width` best
nodes, each proposes `width` children, scored by the product of chances along the path; all are
remembered, and of all ever scored the best `nodes` are verified. A child's score never passes its
parent's, so those are a tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .cache import Cache
from .draft import Draft, chain
from .laws import coins, draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.kernels.speculative.heads.eagle import Eagle1Head, Eagle3Head
    from forebay.kernels.speculative.llama import Llama

    from .engine import Row, Verified

__all__ = ["Eagle"]


class _State:
    """The head's cache, and its state and logits at the root."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.state: torch.Tensor | None = None
        self.logits: torch.Tensor | None = None


class Eagle:
    """Draft with an EAGLE head.

    width 1 drafts a chain of `depth` tokens, at temperature 0 the likeliest, else, with `sampled`,
    drawn from the head, for the law of rejection. A greater width drafts a tree of up to `nodes`.
    """

    lossless = True

    def __init__(
        self,
        head: Eagle1Head | Eagle3Head,
        target: Llama,
        *,
        depth: int = 5,
        width: int = 1,
        nodes: int = 32,
        sampled: bool = False,
    ) -> None:
        self.head = head
        self.target = target
        self.depth = depth
        self.width = width
        self.nodes = nodes
        self.sampled = sampled
        self.features = tuple(head.features)
        self.name = head.method + ("-tree" if width > 1 else "-sampled" if sampled else "")

    def start(self, row: Row, told: Verified) -> None:
        """Run the head over the prompt."""
        slots = len(row.request.prompt) + row.request.most + self.width * self.depth + 80
        weight = self.target.embed_tokens.weight
        cache = Cache.empty(self.head.config, layers=1, rows=1, slots=slots, like=weight)
        row.state = _State(cache)
        self._extend(row, told, row.tokens[1:])

    def observe(self, row: Row, told: Verified) -> None:
        """Run the head over what was accepted, with the target's features in place of its own."""
        self._extend(row, told, row.tokens[-len(told.kept) - 1 :])

    def propose(self, row: Row, room: int) -> Draft:
        """Grow a chain or a tree from the root."""
        depth = min(self.depth, room)
        return self._chain(row, depth) if self.width == 1 else self._tree(row, depth)

    def _extend(self, row: Row, told: Verified, tokens: list[int]) -> None:
        state: _State = row.state
        at = torch.tensor([0, *told.kept], device=told.hidden.device)
        seen = [feature[at] for feature in told.features] or [told.hidden[at]]
        feature = self.head.first_features(seen)[None]
        out = self._run(state, tokens, feature, depths=range(len(tokens)), sees=None)
        state.cache.keep(0, range(1, len(tokens)))
        state.state = out[0, -1]
        state.logits = self.head.logits(out[:, -1], self.target)[0]

    def _run(
        self,
        state: _State,
        tokens: list[int],
        feature: torch.Tensor,
        *,
        depths: Sequence[int],
        sees: list[list[int]] | None,
    ) -> torch.Tensor:
        device = self.target.embed_tokens.weight.device
        ids = torch.tensor([tokens], device=device)
        places = torch.tensor([[state.cache.lengths[0] + d for d in depths]], device=device)
        window = state.cache.window(sees, len(tokens))
        return self.head(self.target.embed_tokens(ids), feature, places, window(0))

    def _chain(self, row: Row, depth: int) -> Draft:
        state: _State = row.state
        logits, feature = state.logits, state.state
        assert logits is not None
        assert feature is not None
        how, tokens, chances = row.request.sampling, list[int](), list[torch.Tensor]()
        coin = coins(how.seed)
        for step in range(depth):
            if self.sampled and how.temperature > 0:
                q = self._over_target((logits.double() / how.temperature).softmax(-1))
                token = draw(q, coin(len(row.tokens) + step, "draft"))
                chances.append(q)
            else:
                token = int(self.head.to_target(logits.argmax(-1)))
            tokens.append(token)
            if step + 1 == depth:
                break
            out = self._step(state, token, feature, step=step)
            feature, logits = out, self.head.logits(out[None], self.target)[0]
        draft = chain(row.tokens[-1], tokens)
        draft.chances = torch.stack(chances) if chances else None
        return draft

    def _step(self, state: _State, token: int, feature: torch.Tensor, *, step: int) -> torch.Tensor:
        """Run one chain step: earlier steps' keys stay in their slots, past the cache's end."""
        cache = state.cache
        start = cache.lengths[0]
        cache.lengths[0] = start + step
        out = self._run(state, [token], feature[None, None], depths=[0], sees=[[1]])
        cache.lengths[0] = start
        return out[0, 0]

    def _over_target(self, q: torch.Tensor) -> torch.Tensor:
        """Spread chances over the draft vocabulary onto the target's."""
        vocab = self.target.config.vocab_size
        if len(q) == vocab:
            return q
        ids = self.head.to_target(torch.arange(len(q), device=q.device))
        return torch.zeros(vocab, dtype=q.dtype, device=q.device).scatter_(0, ids, q)

    def _tree(self, row: Row, depth: int) -> Draft:
        state: _State = row.state
        assert state.logits is not None
        assert state.state is not None
        found = _Candidates()
        frontier = found.add(*self._top(state.logits[None]), above=[-1])
        before = state.state[None].expand(len(frontier), -1)
        grown = _Grown()
        for _ in range(depth - 1):
            frontier, before = found.best(frontier, before, self.width)
            out = self._grow(state, found, grown.take(frontier, before, found.parents))
            out = out[-len(frontier) :]
            frontier = found.add(*self._top(self.head.logits(out, self.target)), above=frontier)
            before = out.repeat_interleave(self.width, 0)
        return found.rerank(row.tokens[-1], self.nodes)

    def _top(self, logits: torch.Tensor) -> tuple[list[list[int]], list[list[float]]]:
        """Take the likeliest tokens of each row, and the logarithms of their chances."""
        top = logits.float().log_softmax(-1).topk(self.width, -1)
        return self.head.to_target(top[1]).tolist(), top[0].tolist()

    def _grow(self, state: _State, found: _Candidates, grown: _Grown) -> torch.Tensor:
        """Run the head on all nodes so far; their keys are rewritten, which costs one small run."""
        depths = [found.depth(candidate) for candidate in grown.ran]
        tokens = [found.tokens[candidate] for candidate in grown.ran]
        feature = torch.stack(grown.features)[None]
        return self._run(state, tokens, feature, depths=depths, sees=[grown.sees])[0]


class _Grown:
    """What the head has run on: candidates, the rows that each sees, features."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.sees: list[int] = []
        self.features: list[torch.Tensor] = []

    def take(self, frontier: list[int], before: torch.Tensor, parents: list[int]) -> _Grown:
        """Add a frontier, whose parents are in already or are the root."""
        row_of = {candidate: row for row, candidate in enumerate(self.ran)}
        for candidate in frontier:
            above = row_of.get(parents[candidate])
            own = 1 << len(self.ran)
            self.sees.append(own if above is None else self.sees[above] | own)
            self.ran.append(candidate)
        self.features += list(before)
        return self


class _Candidates:
    """Every token ever scored: its parent among them, -1 for the root, and its path's score."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []

    def add(
        self, tokens: list[list[int]], chances: list[list[float]], *, above: list[int]
    ) -> list[int]:
        """Add children, one list for each of `above`; returns their numbers."""
        first = len(self.tokens)
        for parent, row, own in zip(above, tokens, chances, strict=True):
            start = self.scores[parent] if parent >= 0 else 0.0
            self.tokens += row
            self.parents += [parent] * len(row)
            self.scores += [start + chance for chance in own]
        return list(range(first, len(self.tokens)))

    def depth(self, candidate: int) -> int:
        """Count the places between the root's child and a candidate."""
        depth = 0
        while self.parents[candidate] >= 0:
            candidate = self.parents[candidate]
            depth += 1
        return depth

    def best(
        self, frontier: list[int], before: torch.Tensor, width: int
    ) -> tuple[list[int], torch.Tensor]:
        """Keep the best of a frontier, in the order they were made, with their features."""
        order = sorted(range(len(frontier)), key=lambda at: (-self.scores[frontier[at]], at))
        order = sorted(order[:width])
        return [frontier[at] for at in order], before[order]

    def rerank(self, root: int, nodes: int) -> Draft:
        """Make a draft of the best of all; ties go to the earlier: parents precede children."""
        every = range(len(self.tokens))
        best = sorted(every, key=lambda at: (-self.scores[at], at))[:nodes]
        draft, rows = Draft.of(root), {-1: 0}
        for candidate in sorted(best):
            rows[candidate] = draft.add(self.tokens[candidate], rows[self.parents[candidate]])
        return draft
