"""Where a request may go and where it goes: filter -> score -> pick over one pool's endpoints.

A filter that says `stable = True` promises that its answer depends on the request's shape and on
`usable`, `models`, `routes` and `name` only; it is asked once a shape, then again after `forget` or
`replace`. The other filters are asked each time, after the stable ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.filter_room import Room

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from random import Random

    from forebay.policies.contracts import (
        EndpointView,
        Filter,
        Pick,
        Placement,
        Request,
        Score,
    )

_MOST_SHAPES = 4096
"""Remembered shapes: callers may invent model names where endpoints take any."""


class Placing:
    """One pool's endpoints, and the choice among them."""

    __slots__ = ("_eligible", "_limited", "_moving", "_pick", "_rng", "_scores", "_stable", "views")

    def __init__(
        self,
        *,
        filters: Sequence[Filter],
        scores: Sequence[tuple[Score, float]],
        pick: Pick,
        rng: Random,
    ) -> None:
        self.views: dict[str, EndpointView] = {}
        """The endpoints by name."""
        self._stable = [f for f in filters if getattr(f, "stable", False)]
        self._moving = [f for f in filters if not getattr(f, "stable", False)]
        self._limited = any(isinstance(f, Room) for f in filters)
        self._scores = list(scores)
        self._pick = pick
        self._rng = rng
        self._eligible: dict[Hashable, Sequence[EndpointView]] = {}

    @property
    def remembered_shapes(self) -> int:
        """How many shapes have their endpoints remembered."""
        return len(self._eligible)

    def replace(self, views: Iterable[EndpointView], placed: Iterable[Placement]) -> None:
        """Take other endpoints; what is placed is counted where its endpoint is still there."""
        self.views = {view.name: view for view in views}
        for view in self.views.values():
            view.in_flight = view.in_flight_tokens = 0
        for placement in placed:
            own = self.views.get(placement.endpoint)
            if own is not None:
                own.in_flight += 1
                own.in_flight_tokens += placement.tokens
        self._eligible.clear()

    def forget(self) -> None:
        """Ask the stable filters again: EndpointViews were edited."""
        self._eligible.clear()

    def eligible(self, request: Request, now: float) -> Sequence[EndpointView]:
        """Return the endpoints that could serve the request if they had room."""
        shape = request.shape
        found = self._eligible.get(shape)
        if found is None:
            found = list(self.views.values())
            for keep in self._stable:
                found = keep(request, found, now)
            if len(self._eligible) >= _MOST_SHAPES:
                self._eligible.clear()
            self._eligible[shape] = found
        return found

    def candidates(self, request: Request, now: float) -> Sequence[EndpointView]:
        """Return the endpoints that may take the request now."""
        found = self._eligible.get(request.shape)
        if found is None:
            found = self.eligible(request, now)
        return self.with_room(request, found, now)

    def with_room(
        self, request: Request, eligible: Sequence[EndpointView], now: float
    ) -> Sequence[EndpointView]:
        """Return those of the eligible endpoints that may take the request now."""
        for keep in self._moving:
            eligible = keep(request, eligible, now)
        return eligible

    def choose(
        self, request: Request, candidates: Sequence[EndpointView], now: float
    ) -> tuple[EndpointView, float]:
        """Return the best of some candidates, and its score."""
        scores = self._rate(request, candidates, now)
        index = self._pick(candidates, scores, self._rng)
        return candidates[index], scores[index]

    def full(self) -> bool:
        """Tell, without asking a filter, that nothing waiting can move: no endpoint has room."""
        if not self._limited:
            return False
        for view in self.views.values():
            if view.in_flight < view.limit and view.room > 0:  # room alone takes twice as long
                return False
        return True

    def _rate(
        self, request: Request, candidates: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        if len(self._scores) == 1:
            return self._scores[0][0](request, candidates, now)
        totals = [0.0] * len(candidates)
        for score, weight in self._scores:
            for index, value in enumerate(score(request, candidates, now)):
                totals[index] += weight * min(1.0, max(0.0, value))
        return totals
