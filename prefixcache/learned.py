"""Guesses what endpoints hold from what was sent to them, and corrects itself by what they report.

Works with every engine, since it needs no events: a prompt that went to an endpoint is expected to
be in its cache. What the endpoint reports as cached tokens shows how far that is true. A predicted
hit that did not happen means that the engine forgets sooner than was thought, so the endpoint's
capacity shrinks and its oldest expectations go; one that did happen lets it grow again slowly
(additive increase, multiplicative decrease, as for congestion windows: Chiu and Jain, 1989).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .blocks import BlockHash
    from .index import Index

SHRINK = 0.9
GROW_BLOCKS = 16
LEAST_BLOCKS = 64
GHOST_SHARE = 0.5
"""Of a predicted hit that must come true for it not to count as a ghost."""


class Learned:
    """Expectations of one pool, kept in its index."""

    def __init__(self, index: Index, *, capacity_blocks: int) -> None:
        """`capacity_blocks` is the most that an endpoint is expected to hold."""
        self._index = index
        self._most = capacity_blocks
        self._capacity: dict[str, int] = {}
        self.ghosts = 0
        """Predicted hits that did not happen."""
        self.confirmed = 0
        """Predicted hits that did."""

    def capacity(self, endpoint: str) -> int:
        """Return how many blocks an endpoint is expected to hold at most."""
        return self._capacity.get(endpoint, self._most)

    def placed(self, endpoint: str, chain: Sequence[BlockHash]) -> None:
        """Expect an endpoint to hold a prompt's blocks from now on.

        The first blocks are touched last: a prefix outlives what hangs on it.
        """
        self._index.store(endpoint, reversed(chain))
        self._trim(endpoint)

    def reported(self, endpoint: str, *, predicted_tokens: int, cached_tokens: int) -> None:
        """Compare a predicted hit with what the engine says; only where a hit was predicted."""
        if predicted_tokens <= 0:
            return
        capacity = self.capacity(endpoint)
        if cached_tokens >= predicted_tokens * GHOST_SHARE:
            self.confirmed += 1
            self._capacity[endpoint] = min(self._most, capacity + GROW_BLOCKS)
            return
        self.ghosts += 1
        held = min(capacity, self._index.held(endpoint))
        self._capacity[endpoint] = max(LEAST_BLOCKS, int(held * SHRINK))
        self._trim(endpoint)

    def forget(self, endpoint: str) -> int:
        """Expect nothing of an endpoint any more: it restarted or left. Return how much it was."""
        self._capacity.pop(endpoint, None)
        return self._index.clear(endpoint)

    def _trim(self, endpoint: str) -> None:
        over = self._index.held(endpoint) - self.capacity(endpoint)
        if over > 0:
            self._index.remove(endpoint, self._index.oldest(endpoint, over))
