# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Medusa: heads guess several places from one state, tried as a fixed tree of ranks.

A node of the tree is a path of ranks: (0, 2) is the first head's likeliest token, then the second
head's third. `rank_tree` builds the tree from how often each rank of each head was right.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import torch

from .draft import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.kernels.speculative.heads.medusa import MedusaHeads

    from .engine import Row, Verified

__all__ = ["DEFAULT_RIGHT", "Medusa", "rank_tree"]

# Share of places at which each rank of each head is right, for heads that were not calibrated.
DEFAULT_RIGHT = tuple(
    tuple(first * 0.3**rank for rank in range(8)) for first in (0.6, 0.4, 0.28, 0.2, 0.15)
)


def rank_tree(right: Sequence[Sequence[float]], nodes: int) -> list[tuple[int, ...]]:
    """Take the `nodes` paths likeliest to be right, parents before children."""
    heap: list[tuple[float, tuple[int, ...]]] = [(-right[0][0], (0,))]
    chosen: list[tuple[int, ...]] = []
    while heap and len(chosen) < nodes:
        chance, path = heapq.heappop(heap)
        chosen.append(path)
        depth, rank = len(path), path[-1]
        if depth < len(right):
            heapq.heappush(heap, (chance * right[depth][0], (*path, 0)))
        if rank + 1 < len(right[depth - 1]) and right[depth - 1][rank] > 0:
            sibling = chance / right[depth - 1][rank] * right[depth - 1][rank + 1]
            heapq.heappush(heap, (sibling, (*path[:-1], rank + 1)))
    return chosen


class Medusa:
    """typical: keep what is likely enough rather than what the target's law keeps; lossy."""

    features: tuple[int, ...] = ()

    def __init__(
        self,
        heads: MedusaHeads,
        *,
        paths: Sequence[tuple[int, ...]] | None = None,
        typical: bool = False,
    ) -> None:
        self.heads = heads
        self.lossless = not typical
        self.name = "medusa-typical" if typical else "medusa"
        count = len(heads.blocks)
        self.paths = list(paths or rank_tree(DEFAULT_RIGHT[:count], 24))
        self._ranks = 1 + max(max(path) for path in self.paths)

    def start(self, row: Row, told: Verified) -> None:
        """Keep the prompt's last state."""
        row.state = told.hidden[told.kept[-1] if told.kept else 0]

    def observe(self, row: Row, told: Verified) -> None:
        """Keep the last accepted row's state."""
        self.start(row, told)

    def propose(self, row: Row, room: int) -> Draft:
        """Fill the tree with the heads' tokens."""
        logits = torch.stack(self.heads(row.state))
        ranked = logits.topk(self._ranks, -1)[1].tolist()
        draft = Draft.of(row.tokens[-1])
        rows: dict[tuple[int, ...], int] = {(): 0}
        for path in self.paths:
            if len(path) <= room:
                rows[path] = draft.add(ranked[len(path) - 1][path[-1]], rows[path[:-1]])
        return draft
