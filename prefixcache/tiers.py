"""Where in an engine a block lies, what a hit there is worth, and copies counted by tier.

A *tally* counts copies of one thing on each tier in one integer, so that a node of the reader is no
larger than with a plain count; its lowest tier is where the thing is read from.
"""

from __future__ import annotations

from enum import IntEnum


class Tier(IntEnum):
    """The nearest first."""

    GPU = 0
    HOST = 1
    DISK = 2
    """Any storage behind, also another machine's."""


WORTH = (1.0, 0.8, 0.5)
"""Of a hit on each tier, against one on the GPU: what is left after it has been fetched."""
NOWHERE = 3
"""What `lowest` says of an empty tally."""
ONE = (1, 1 << 40, 1 << 80)
"""One copy on each tier, in a tally."""
_FIELD = (1 << 40) - 1


def lowest(tally: int) -> int:
    """Return the nearest tier with a copy; NOWHERE where there is none."""
    if tally & _FIELD:
        return 0
    if not tally:
        return NOWHERE
    return 1 if tally >> 40 & _FIELD else 2


def copies_on(tally: int, tier: int) -> int:
    """Return how many copies are on a tier."""
    return tally >> 40 * tier & _FIELD


def tier_of(medium: str | None) -> Tier:
    """Return the tier that an event's `medium` names; nothing said is the GPU.

    vLLM says GPU, CPU, STORAGE; SGLang GPU, CPU_PINNED, DISK, EXTERNAL. What else may come is
    taken to be far.
    """
    if medium is None:
        return Tier.GPU
    name = medium.upper()
    if name == "GPU":
        return Tier.GPU
    return Tier.HOST if name.startswith("CPU") else Tier.DISK
