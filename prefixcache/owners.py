"""Whose the expected blocks are, so that no tenant's push out all others'.

Two limits. *Share*: while an endpoint's blocks must give way and several tenants have some there,
those of a tenant with more than its share go first, least recently used first. Room that nobody
else wants may be used by one tenant alone. *Novelty*: a tenant's blocks that nobody has sent before
are entered at a bounded rate, with a minute's worth at once; what is past that is not entered, so a
flood of prompts that never come again leaves the others' prefixes known.

Both are about what is known here, which is also what other replicas tell. An engine's own cache
keeps and drops as it will.

An endpoint's blocks of one tenant stand in the order they came, each with the moment (in uses of
any block) since which it stands there. When some must go, the first that were not used since are
taken; those that were go to the end (the CLOCK algorithm: Corbato, 1968). So a hit costs nothing
here. What was forgotten otherwise is found out only then: counts may run ahead of the truth.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .blocks import BlockHash
    from .index import Index

BURST_S = 60.0
"""Seconds' worth of new blocks that may come at once."""
_LOOKED_AT = 4096
"""Blocks that one step looks at, at most."""


class Owners:
    """Counts blocks by endpoint and tenant. Needs some 60 bytes a block."""

    def __init__(
        self, index: Index, *, share: float = 1.0, new_blocks_per_s: float | None = None
    ) -> None:
        """Hold each tenant to a `share` of an endpoint's blocks, and to a rate of new ones."""
        self.refused: dict[str, int] = {}
        """New blocks that were not entered, by tenant."""
        self.evicted: dict[str, int] = {}
        """Blocks that went first since their tenant had more than its share, by tenant."""
        self._index = index
        self._share = share
        self._rate = new_blocks_per_s
        self._blocks: dict[str, dict[str, dict[BlockHash, int]]] = {}
        """By endpoint and tenant."""
        self._flooded: dict[str, float] = {}
        """By tenant, when new blocks of its were last not entered."""
        self._left: dict[str, tuple[float, float]] = {}
        """By tenant: new blocks it may still enter, and when that was so."""

    def limit(self, *, share: float, new_blocks_per_s: float | None) -> None:
        """Take other limits."""
        self._share, self._rate = share, new_blocks_per_s

    def blocks(self) -> dict[str, int]:
        """Return how many each tenant has, all endpoints together."""
        counts: dict[str, int] = {}
        for of_endpoint in self._blocks.values():
            for owner, blocks in of_endpoint.items():
                counts[owner] = counts.get(owner, 0) + len(blocks)
        return counts

    def admit(self, owner: str, chain: Sequence[BlockHash], now: float) -> Sequence[BlockHash]:
        """Return as much of a chain as may be entered: what is known, and of the rest a bit."""
        if self._rate is None:
            return chain
        known = self._index.longest(chain)
        novel = len(chain) - known
        left = self._may_enter(owner, self._rate, now)
        entered = min(novel, max(0, int(left)))
        self._left[owner] = (left - entered, now)
        if entered < novel:
            self.refused[owner] = self.refused.get(owner, 0) + novel - entered
            self._flooded[owner] = now
            return chain[: known + entered]
        return chain

    def spend(self, owner: str, blocks: Sequence[BlockHash], now: float) -> None:
        """Take in what another replica entered for a tenant, before it is stored here."""
        if self._rate is not None:
            left = self._may_enter(owner, self._rate, now) - self._index.unknown(blocks)
            self._left[owner] = (max(-self._rate * BURST_S, left), now)

    def _may_enter(self, owner: str, rate: float, now: float) -> float:
        most = rate * BURST_S
        left, at = self._left.get(owner, (most, now))
        return min(most, left + (now - at) * rate)

    def floods(self, owner: str, now: float) -> bool:
        """Tell whether a tenant has lately brought more that is new than it may."""
        at = self._flooded.get(owner)
        return at is not None and now - at < BURST_S

    def add(self, endpoint: str, owner: str, new: Sequence[BlockHash]) -> None:
        """Note blocks that are new at an endpoint, and whose they are."""
        if not new:
            return
        mine = self._blocks.setdefault(endpoint, {}).setdefault(owner, {})
        clock = self._index.clock
        for block in new:
            mine[block] = clock

    def clear(self, endpoint: str) -> None:
        """Forget what is at an endpoint."""
        self._blocks.pop(endpoint, None)

    def greedy(self, endpoint: str, over: int, capacity: int) -> list[BlockHash]:
        """Return up to `over` blocks of tenants who have more than their share of `capacity`.

        None while one tenant is alone there.
        """
        tenants = self._blocks.get(endpoint, {})
        if len(tenants) < 2:
            return []
        going: list[BlockHash] = []
        fair = int(self._share * capacity)
        for owner in sorted(tenants, key=lambda each: len(tenants[each]), reverse=True):
            excess = min(over - len(going), len(tenants[owner]) - fair)
            if excess <= 0:
                break
            found = self._unused(endpoint, tenants[owner], excess)
            self.evicted[owner] = self.evicted.get(owner, 0) + len(found)
            going += found
        for owner in [owner for owner, blocks in tenants.items() if not blocks]:
            del tenants[owner]
        return going

    def _unused(self, endpoint: str, blocks: dict[BlockHash, int], count: int) -> list[BlockHash]:
        """Take the first that were not used since they stand where they do."""
        index = self._index
        going: list[BlockHash] = []
        looked_at = min(_LOOKED_AT, 4 * count + 64)
        for block, since in list(islice(blocks.items(), looked_at)):
            if len(going) >= count:
                break
            del blocks[block]
            used = index.used(endpoint, block)
            if used is None:
                count -= 1  # it is gone already
            elif index.clock - used[0] > since:
                blocks[block] = index.clock
            else:
                going.append(block)
        return going
