"""Who gives way when an endpoint is expected to hold too much.

Each policy says how much a block deserves to be kept, from how long it has not been used (`age`, in
uses of any block) and how often it was (`uses`). Only the oldest are compared, as Redis compares a
sample: `widen` times as many as must go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log1p
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .blocks import BlockHash

    Aged = tuple[BlockHash, int, int]
    """A block, its age and its uses."""


_LEARNT_FROM = 2
"""Blocks of each eviction, as of each prompt that comes again: a step for all would cost more."""


class Eviction(Protocol):
    """Chooses which blocks an endpoint is expected to lose first."""

    name: str
    widen: int
    learns: bool
    """It wants to know what became of blocks."""

    def keep(self, age: int, uses: int) -> float:
        """Return how much a block deserves to be kept."""
        ...

    def learn(self, age: int, uses: int, *, reused: bool) -> None:
        """Take in what became of a block."""
        ...


class Lru:
    """The least recently used goes: what engines themselves do."""

    name = "lru"
    widen = 1
    learns = False

    def keep(self, age: int, uses: int) -> float:  # noqa: ARG002 - see Eviction
        """See Eviction."""
        return -age

    def learn(self, age: int, uses: int, *, reused: bool) -> None:
        """Nothing to learn."""


class Lfu(Lru):
    """The least often used of the older ones goes.

    When not to use it: where what was popular yesterday is not today's.
    """

    name = "lfu"
    widen = 8

    def keep(self, age: int, uses: int) -> float:
        """See Eviction."""
        return uses - age * 1e-12


class Hybrid(Lru):
    """The one whose uses a moment of its age are fewest: often used ones stay longer."""

    name = "hybrid"
    widen = 2

    def keep(self, age: int, uses: int) -> float:
        """See Eviction."""
        return log1p(uses) / (age + 1)


@dataclass(slots=True)
class Learnt:
    """The one least likely to be used again, by a logistic model that learns as it goes.

    Two features, the logarithms of age and uses; a step down the gradient for each block that is
    used again or evicted.
    """

    name: str = "learned"
    widen: int = 4
    learns: bool = True
    rate: float = 0.05
    weights: list[float] = field(default_factory=lambda: [0.0, -0.1, 0.5])

    def keep(self, age: int, uses: int) -> float:
        """See Eviction."""
        bias, of_age, of_uses = self.weights
        return bias + of_age * log1p(age) + of_uses * log1p(uses)

    def learn(self, age: int, uses: int, *, reused: bool) -> None:
        """See Eviction."""
        off = self.rate * (reused - 1 / (1 + exp(-max(-30.0, min(30.0, self.keep(age, uses))))))
        weights = self.weights
        weights[0] += off
        weights[1] += off * log1p(age) * 0.1
        weights[2] += off * log1p(uses)


EVICTIONS: dict[str, Callable[[], Eviction]] = {
    "hybrid": Hybrid,
    "learned": Learnt,
    "lfu": Lfu,
    "lru": Lru,
}


def victims(policy: Eviction, oldest: Sequence[Aged], count: int) -> list[BlockHash]:
    """Return the `count` that deserve least to be kept, of those that are the oldest."""
    if policy.widen == 1:
        return [block for block, _, _ in oldest[:count]]
    ranked = sorted(oldest, key=lambda item: policy.keep(item[1], item[2]))[:count]
    if policy.learns:
        for _, age, uses in ranked[:_LEARNT_FROM]:
            policy.learn(age, uses, reused=False)
    return [block for block, _, _ in ranked]
