"""Places of a pool that are kept for some tenants, for as long as they want them.

A reserve is a share of a pool's places (`policies.shares` has the arithmetic that this keeps to).
What is placed for its tenants draws on it first; while it is not used up and one of them waits, the
next place that becomes free is theirs, whatever the ordering says. So what they do not want is lent
to all, and taken back at the next dispatch.

The rest of the pool is shared as if the reserve were not there, its tenants included: of what these
have, the ordering is charged the part that does not draw on the reserve. Each placement of theirs
is charged that same part, so that they share by weight among themselves, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forebay.policies.contracts import EndpointView, Placement, Request


_LEAST = 0.01
"""Charged at least, or nobody of a reserve would ever be behind another."""


class Reserves:
    """Counts who draws on which reserve of one pool, and who waits for it."""

    __slots__ = ("_all", "_drawn", "_held", "_shares", "_waiting")

    def __init__(self, shares: Mapping[str, float]) -> None:
        scale = 1.0 / max(1.0, sum(shares.values()))
        self._shares = {name: share * scale for name, share in shares.items() if share > 0}
        self._held = dict.fromkeys(self._shares, 0)
        self._waiting = dict.fromkeys(self._shares, 0)
        self._all = dict.fromkeys(self._shares, 0)
        """Placements of a reserve's tenants, whether they draw on it or not."""
        self._drawn: dict[int, tuple[bool, float]] = {}
        """Of a placement: whether it draws on its reserve, and the part that was charged."""

    @property
    def held(self) -> Mapping[str, int]:
        """How many placements draw on each reserve."""
        return self._held

    def waits(self, request: Request) -> None:
        """Take in that a request waits."""
        if request.reserve in self._waiting:
            self._waiting[request.reserve] += 1

    def gone(self, request: Request) -> None:
        """Take in that it waits no longer."""
        if request.reserve in self._waiting:
            self._waiting[request.reserve] -= 1

    def placed(self, placement: Placement, views: Iterable[EndpointView]) -> float:
        """Take in a placement; return the part of its cost that is to be charged."""
        name = placement.request.reserve
        share = self._shares.get(name)
        if share is None:
            return 1.0
        draws = self._held[name] < share * _places(views)
        self._held[name] += draws
        self._all[name] += 1
        part = max(_LEAST, 1.0 - self._held[name] / self._all[name])
        self._drawn[id(placement)] = draws, part
        return part

    def released(self, placement: Placement) -> float:
        """Take in that a placement is over; return the part of its cost that was charged."""
        draws, part = self._drawn.pop(id(placement), (None, 1.0))
        if draws is not None:
            self._held[placement.request.reserve] -= draws
            self._all[placement.request.reserve] -= 1
        return part

    def owed(self, views: Iterable[EndpointView]) -> list[str]:
        """Name the reserves not used up that somebody waits for, the emptiest first."""
        wanted = [name for name, count in self._waiting.items() if count]
        if not wanted:
            return wanted
        places = _places(views)
        use = {name: self._held[name] / self._shares[name] for name in wanted}
        return sorted((name for name in wanted if use[name] < places), key=use.__getitem__)


def _places(views: Iterable[EndpointView]) -> float:
    """Count the places of the endpoints that are usable now."""
    return sum(view.limit * view.share for view in views if view.usable)
