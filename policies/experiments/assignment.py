"""Which arm a key gets: weighted rendezvous hashing.

Each arm draws an exponential time from the hash of (seed, arm, key), divided by its weight; the
smallest wins. So an arm gets its weight's share of all keys; a change of one weight moves keys
only to or from that arm; and whoever knows seed, weights and key finds the same arm.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCALE = 2.0**-64


def uniform(seed: str, key: bytes) -> float:
    """Return a number in (0, 1) that is always the same for this seed and key."""
    return (xxh3_64_intdigest(seed.encode() + b"\x1f" + key) + 0.5) * _SCALE


def assign(seed: str, key: bytes, weights: Iterable[tuple[str, float]]) -> str | None:
    """Return the arm of a key; None when no weight is above 0.

    `weights` are names and shares in any unit. Costs 1 us an arm.
    """
    best, soonest = None, 0.0
    for name, weight in weights:
        if weight <= 0:
            continue
        time = -log(uniform(f"{seed}\x1f{name}", key)) / weight
        if best is None or time < soonest:
            best, soonest = name, time
    return best
