"""How a pool's places are shared: a reserve for some tenants, the rest by weight.

A reserve belongs to a plan: its tenants together are sure of that share of the pool, whoever else
wants it. What of it they do not want is lent to the others by weight, and taken back at the next
dispatch: entitlements are worked out anew from what everybody holds and wants now, so a lender
waits for one request to end, never for a borrower's good will. The rest of the pool is for all, the
reserve's tenants included, by weight; what one cannot use goes to those who can.

Not for spreading cost over time (that is the ordering's work): this only says who may hold how much
at this moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RESERVE = 0.2
"""The share of a pool that a plan marked `reserve` holds unless it says another."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One tenant's part in a pool now. `holding` and `waiting` are in places, or any one unit."""

    tenant: str
    weight: float = 1.0
    reserve: str | None = None
    """The reserve it draws on first."""
    holding: float = 0.0
    waiting: float = 0.0

    @property
    def wanted(self) -> float:
        """What it would hold if it could."""
        return self.holding + self.waiting


def entitlements(
    claims: Sequence[Claim], capacity: float, reserves: Mapping[str, float]
) -> dict[str, float]:
    """Return how much each tenant is entitled to hold now; never more than it wants.

    `reserves` are shares of the capacity; where they exceed all of it, each gives way in
    proportion. The sum is the capacity, or all that is wanted where that is less.
    """
    granted = dict.fromkeys((claim.tenant for claim in claims), 0.0)
    scale = capacity / max(1.0, sum(reserves.values()))
    for name, share in reserves.items():
        _pour(share * scale, [c for c in claims if c.reserve == name], granted)
    _pour(capacity - sum(granted.values()), claims, granted)
    return granted


def first(claims: Iterable[Claim], entitled: Mapping[str, float]) -> str | None:
    """Return the waiting tenant that holds least of what it is entitled to; None when nobody may.

    Ties go to the one named first.
    """
    chosen, lowest = None, 1.0
    for claim in claims:
        share = entitled[claim.tenant]
        if claim.waiting > 0 and share > 0 and claim.holding / share < lowest:
            chosen, lowest = claim.tenant, claim.holding / share
    return chosen


def _pour(amount: float, claims: Iterable[Claim], granted: dict[str, float]) -> None:
    """Add `amount` to what is granted, by weight, to nobody more than it wants."""
    thirsty = [claim for claim in claims if claim.wanted > granted[claim.tenant]]
    # Those who want least for their weight are filled first; what they leave raises the others.
    thirsty.sort(key=lambda claim: (claim.wanted - granted[claim.tenant]) / claim.weight)
    weight = sum(claim.weight for claim in thirsty)
    for claim in thirsty:
        given = min(claim.wanted - granted[claim.tenant], amount * claim.weight / weight)
        granted[claim.tenant] += given
        amount -= given
        weight -= claim.weight
