"""What is placed in one pool: counted at its endpoints, and charged to its tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .reserves import Reserves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from forebay.policies.contracts import Charged, EndpointView, Placement

    from .placing import Placing


class Places:
    """The placements that are neither released nor called back."""

    __slots__ = ("_charged", "_placed", "_placing", "reserves")

    def __init__(
        self, placing: Placing, charged: Charged | None, reserves: Mapping[str, float] | None
    ) -> None:
        self.reserves = Reserves(reserves) if reserves else None
        """Places kept for some tenants; None where there are none."""
        self._placing = placing
        self._charged = charged
        self._placed: dict[int, Placement] = {}

    def __len__(self) -> int:
        return len(self._placed)

    def __contains__(self, placement: Placement) -> bool:
        return id(placement) in self._placed

    @property
    def placed(self) -> Collection[Placement]:
        """All of them, in the order in which they were placed."""
        return self._placed.values()

    def resume(self, placements: Iterable[Placement], views: Iterable[EndpointView]) -> None:
        """Begin with what runs already, at these endpoints; it is charged once more, here."""
        self._placed = {id(placement): placement for placement in placements}
        self._placing.replace(views, self._placed.values())
        for placement in self._placed.values():
            self._charge(placement)

    def add(self, placement: Placement, view: EndpointView) -> None:
        """Take a placement in."""
        view.in_flight += 1
        view.in_flight_tokens += placement.tokens
        self._placed[id(placement)] = placement
        self._charge(placement)

    def give_back(self, placement: Placement, cost: float | None) -> bool:
        """Let a placement go, at its true cost where that is known; False when it is gone."""
        if self._placed.pop(id(placement), None) is None:
            return False
        view = self._placing.views.get(placement.endpoint)
        if view is not None:
            view.in_flight -= 1
            view.in_flight_tokens -= placement.tokens
        part = 1.0 if self.reserves is None else self.reserves.released(placement)
        if self._charged is not None:
            true = placement.cost if cost is None else cost
            self._charged.settled(placement.request, part * placement.cost, part * true)
        return True

    def owed(self) -> list[str]:
        """Name the reserves that are owed a place, the emptiest first."""
        return [] if self.reserves is None else self.reserves.owed(self._placing.views.values())

    def _charge(self, placement: Placement) -> None:
        """Charge a placement to its tenant, or the part that draws on no reserve."""
        cost = placement.cost
        if self.reserves is not None:
            cost *= self.reserves.placed(placement, self._placing.views.values())
        if self._charged is not None:
            self._charged.started(placement.request, cost, placement.placed)
