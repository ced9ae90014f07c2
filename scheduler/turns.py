"""Whose turn has come in one pool, and who waits no longer.

What every event of `dispatch` ends in: the places that there are go to those that wait. More may
happen to others besides, and is kept in `others` until it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Placement

from .limits import too_late
from .others import Others

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from forebay.policies.contracts import EndpointView, Request

    from .entrance import Entrance
    from .line import Line
    from .places import Places
    from .placing import Placing
    from .recall import Recalls


class Turns:
    """Hands out a pool's places to those in its line, and takes out those whose time is over."""

    __slots__ = (
        "_costed",
        "_drain",
        "_entrance",
        "_guards",
        "_line",
        "_places",
        "_placing",
        "_pool",
        "_recalls",
        "_started",
        "_waiting",
        "gave_up",
        "others",
        "recalled",
    )

    def __init__(  # noqa: PLR0913 - whatever may have a say
        self,
        *,
        pool: str,
        line: Line,
        placing: Placing,
        places: Places,
        entrance: Entrance,
        recalls: Recalls | None,
        costed: bool,
    ) -> None:
        """`costed`: somebody is charged for what starts."""
        self.others = Others()
        """What the last events did to others."""
        self.recalled = 0
        """Placements that were called back."""
        self.gave_up = 0
        """Waiting requests that were refused since they could not start in time."""
        self._pool = pool
        self._line = line
        self._waiting = line.waiting
        self._guards = line.guards
        self._placing = placing
        self._places = places
        self._entrance = entrance
        self._drain = entrance.drain
        self._started = entrance.starts
        self._recalls = recalls
        self._costed = costed

    def place(self, request: Request, candidates: Sequence[EndpointView], now: float) -> Placement:
        """Start a request on one of the endpoints that have room for it."""
        view, score = self._placing.choose(request, candidates, now)
        tokens = request.uncached_tokens + request.output_tokens_estimate
        cost = self._line.predicted(request) if self._costed else 0.0
        placement = Placement(request, view.name, tokens, now, score, cost)
        self._places.add(placement, view)
        self._started.add(now)
        if self._guards is not None:
            self._guards.started(request, cost, now)
            if self._recalls is not None:
                self._recalls.placed(placement)
        return placement

    def give_back(self, placement: Placement, cost: float | None) -> bool:
        """Let a placement go, at its true cost where that is known; False when it is gone."""
        if not self._places.give_back(placement, cost):
            return False
        if self._recalls is not None:
            self._recalls.begun(placement)
        return True

    def wait(self, request: Request, now: float) -> None:
        """Let a request wait for its turn."""
        if self._drain is not None and not self._waiting.size:
            self._drain.began()
        self._line.add(request, now)

    def leave(self, request: Request) -> bool:
        """Forget a waiting request; False when it does not wait."""
        if self._recalls is not None:
            self._recalls.forget(request.id)
        return self._line.discard(request.id)

    def fill(self, now: float) -> list[Placement]:
        """Hand out whatever room there is."""
        placements: list[Placement] = []
        found: dict[Hashable, Sequence[EndpointView]] = {}

        def fits(request: Request) -> bool:
            shape = request.shape
            candidates = found.get(shape)
            if candidates is None:
                candidates = found[shape] = self._placing.candidates(request, now)
            return bool(candidates)

        if self._guards is not None and self._waiting.size:
            top = self._waiting.soonest()
            if top is not None and top[0] <= now:
                # Nothing starts after its time, however late we are.
                self.others.expired.extend(self.expire(now))
        while self._waiting.size and not self._placing.full():
            request = self._line.next(now, fits)
            if request is None:
                break
            self._line.take(request.id)
            if self._drain is not None:
                self._drain.placed(now)
            placements.append(self.place(request, found[request.shape], now))
            found.clear()
        return placements

    def expire(self, now: float) -> list[Request]:
        """Remove and return those whose deadline has come; refuse those that are too late."""
        expired: list[Request] = []
        while (top := self._waiting.soonest()) is not None and top[0] <= now:
            until, request = top
            self.leave(request)
            if until < request.deadline:
                self.gave_up += 1
                wait = self._entrance.retry_after(now)
                error = too_late(self._pool, now - request.arrived, wait)
                self.others.refused.append((request, error))
            else:
                expired.append(request)
        return expired

    def recall_for(
        self, request: Request, eligible: Sequence[EndpointView], now: float
    ) -> Placement | None:
        """Call back a lower class's placement for a request that would be next of its rank."""
        assert self._recalls is not None
        assert self._guards is not None
        if self._waiting.any_of_rank(request.sla_rank):
            return None
        names = {view.name for view in eligible if view.room >= 0}
        victim = self._recalls.victim(request.sla_rank, names)
        if victim is None or now >= self._guards.due(victim.request):
            return None
        self._recalls.call_back(victim)
        self.recalled += 1
        self.give_back(victim, 0.0)
        candidates = self._placing.candidates(request, now)
        placement = self.place(request, candidates, now) if candidates else None
        self.others.recalled.append(victim)
        self.wait(victim.request, now)
        # Where another endpoint has room for who was called back.
        self.others.started.extend(self.fill(now))
        return placement
