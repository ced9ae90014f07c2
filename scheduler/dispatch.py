"""One pool's queue and placement: who goes next, and where.

Theory of operation. A request is bound to an endpoint as late as possible: it waits here, not in an
engine, until an endpoint that can serve it has room. One rule carries everything:

    between two events, no endpoint with room could serve a request that waits.

So a request that comes while others wait may still be placed at once (whoever waits cannot use the
endpoint it takes), and an event only has to hand out the room it made. Every event that can make
room ends in `Turns.fill`; whoever edits an EndpointView calls `changed` at once.

Where a request may go is `placing`'s to say, who may wait at all is `entrance`'s, and who goes next
the `line`'s, by the ordering and the guards; `turns` hands the places out.

An event returns the placements of those whose turn has come. More may happen to others besides: a
lower class's request is refused to make room in the queue, a lower class's placement is called back
for a higher one, and so on. `take_others` tells it, and is to be asked after each event.

Costs: a placement is O(endpoints), whatever waits; to queue, leave or expire is O(log waiting); an
event that makes room looks at most once at each waiting shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Charged

from .cost import Cost
from .entrance import Entrance
from .limits import QueueLimits
from .line import Line
from .others import Others
from .places import Places
from .placing import Placing
from .recall import Recalls
from .turns import Turns
from .unservable import unservable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from forebay.policies.contracts import (
        EndpointView,
        Filter,
        Ordering,
        Pick,
        Placement,
        Rejected,
        Request,
        Score,
    )

    from .admission import Admission, WatermarkSettings
    from .guards import GuardSettings
    from .reserves import Reserves


class Dispatcher:
    """The waiting requests of one pool, and its endpoints' places.

    Weakness: what waits for a shape that no endpoint can serve any more waits until its deadline,
    unless somebody calls `recheck`.
    """

    def __init__(  # noqa: PLR0913 - every part can be replaced
        self,
        *,
        pool: str,
        ordering: Ordering,
        filters: Sequence[Filter],
        scores: Sequence[tuple[Score, float]],
        pick: Pick,
        rng: Random,
        max_requests: int,
        max_bytes: int,
        guards: GuardSettings | None = None,
        watermarks: WatermarkSettings | None = None,
        reserves: Mapping[str, float] | None = None,
        cost: Cost | None = None,
    ) -> None:
        self.pool = pool
        self.displaced = 0
        """Waiting requests that were refused to make room for a higher class."""
        self.released_twice = 0
        """Releases of what was not in flight: a bug of the caller, without effect here."""
        self._placing = Placing(filters=filters, scores=scores, pick=pick, rng=rng)
        charged = ordering if isinstance(ordering, Charged) else None
        self._places = Places(self._placing, charged, reserves)

        self._line = Line(
            ordering,
            cost=cost or Cost(),
            places=self._places,
            guards=guards,
            sizes=watermarks is not None,
        )
        self.waiting = self._line.waiting
        self.guards = self._line.guards
        self._entrance = Entrance(
            pool=pool,
            waiting=self.waiting,
            limits=QueueLimits(max_requests, max_bytes),
            watermarks=watermarks,
            guards=self.guards,
            ordering=ordering,
        )
        self._recalls = Recalls(guards.recalls) if guards is not None and guards.recalls else None
        self._turns = Turns(
            pool=pool,
            line=self._line,
            placing=self._placing,
            places=self._places,
            entrance=self._entrance,
            recalls=self._recalls,
            costed=charged is not None or self.guards is not None,
        )

    @property
    def ordering(self) -> Ordering:
        """Who says who goes next."""
        return self._line.ordering

    @property
    def endpoints(self) -> dict[str, EndpointView]:
        """The endpoints by name."""
        return self._placing.views

    @property
    def admission(self) -> Admission | None:
        """The watermarks; None where there are none."""
        return self._entrance.admission

    @property
    def reserves(self) -> Reserves | None:
        """Places kept for some tenants; None where there are none."""
        return self._places.reserves

    @property
    def foretold(self) -> int:
        """New requests that were refused since they would have waited too long."""
        return self._entrance.foretold

    @property
    def recalls(self) -> int:
        """Placements that were called back."""
        return self._turns.recalled

    @property
    def gave_up(self) -> int:
        """Waiting requests that were refused since they could not start in time."""
        return self._turns.gave_up

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self.waiting)

    @property
    def queued_bytes(self) -> int:
        """How large the bodies of those are."""
        return self.waiting.bytes

    @property
    def placed(self) -> Iterable[Placement]:
        """What is not released."""
        return self._places.placed

    def holds(self, placement: Placement) -> bool:
        """Tell whether a placement is neither released nor called back."""
        return placement in self._places

    @property
    def in_flight(self) -> int:
        """How many placements are not released."""
        return len(self._places)

    @property
    def remembered_shapes(self) -> int:
        """How many shapes have their endpoints remembered."""
        return self._placing.remembered_shapes

    @property
    def next_deadline(self) -> float | None:
        """When `expire` next has something to do; None when nothing waits."""
        top = self.waiting.soonest()
        return None if top is None else top[0]

    def oldest_wait(self, now: float) -> float:
        """Return how long the oldest waiting request has been here, in seconds; 0 when none is."""
        return max(0.0, now - min(self.waiting.oldest().values(), default=now))

    def set_endpoints(self, views: Iterable[EndpointView]) -> None:
        """Replace the endpoints; call `changed` after. What is in flight stays counted by name."""
        self._placing.replace(views, self._places.placed)

    def take_over(self, other: Dispatcher) -> None:
        """Go on for another dispatcher of the same pool: its endpoints, what runs and what waits.

        What runs is charged here as it was there, and is not called back. What was counted goes on.
        """
        self.displaced, turns = other.displaced, self._turns
        turns.recalled, turns.gave_up = other.recalls, other.gave_up
        self._entrance.foretold, self.released_twice = other.foretold, other.released_twice
        if self.guards is not None and other.guards is not None:
            self.guards.forced, self.guards.starved = other.guards.forced, other.guards.starved
        waiting = sorted(other.waiting, key=lambda request: request.sequence)
        self.resume(placed=other.placed, waiting=waiting, endpoints=list(other.endpoints.values()))

    def resume(
        self,
        *,
        placed: Iterable[Placement],
        waiting: Iterable[Request],
        endpoints: Iterable[EndpointView],
    ) -> None:
        """Begin in the middle of things. The requests wait in the order given."""
        self._places.resume(placed, endpoints)
        for request in waiting:
            self._turns.wait(request, request.arrived)

    def set_limits(
        self, *, max_requests: int, max_bytes: int, classes: Mapping[str, int] | None = None
    ) -> None:
        """Change what may wait, also of one class; what waits already stays."""
        self._entrance.set_limits(max_requests=max_requests, max_bytes=max_bytes, classes=classes)

    def submit(self, request: Request, now: float) -> Placement | None:
        """Place a request, or queue it (None).

        A request that comes back (`avoid` is not empty) keeps its place by its `sequence` and is
        queued even where the queue is full: it was let in before.

        Raises Overloaded, 429 when the queue is full and 503 when nothing usable could ever serve
        it, and InvalidRequest (404) when no endpoint of the pool has the route or the model.
        """
        if not request.avoid:
            self._entrance.check_watermarks(request, now)
        eligible = self._placing.eligible(request, now)
        candidates = self._placing.with_room(request, eligible, now)
        if candidates:
            return self._turns.place(request, candidates, now)
        if not eligible:
            raise unservable(request, self.pool, self.endpoints)
        if self._recalls is not None and request.sla_rank > 0:
            placement = self._turns.recall_for(request, eligible, now)
            if placement is not None:
                return placement
        if not request.avoid:
            self._let_in(request, now)
        self._turns.wait(request, now)
        return None

    def take_others(self) -> Others | None:
        """Return, once, what the last events did to others than their own requests; None: nothing.

        Whoever was called back waits again already, so it is to be stopped before what starts.
        """
        turns = self._turns
        others = turns.others
        if not (others.recalled or others.refused or others.expired or others.started):
            return None
        turns.others = Others()
        return others

    def could_serve(self, request: Request, now: float) -> bool:
        """Tell whether an endpoint that is usable now could serve it, with room or without."""
        return bool(self._placing.eligible(request, now))

    def revise(self, request: Request, now: float) -> bool:
        """Put a waiting request's better estimate in the place of what was known of it.

        It keeps its place by its `sequence`. False when it does not wait.
        """
        before = self.waiting.get(request.id)
        if before is None or before.avoid != request.avoid:
            return False
        self._line.discard(before.id)  # how often it was called back is remembered
        self._turns.wait(request, now)
        return True

    def leave(self, request: Request) -> bool:
        """Forget a waiting request whose caller left; False when it does not wait."""
        return self._turns.leave(request)

    def began(self, placement: Placement) -> None:
        """Take in that the first byte of an answer has come: it is not called back any more."""
        if self._recalls is not None:
            self._recalls.begun(placement)

    def release(
        self, placement: Placement, now: float, cost: float | None = None
    ) -> list[Placement]:
        """Give a place back, once, and return who goes next.

        `cost` is what the request really cost; None when that is not known, 0 when it is to be
        tried again. Releasing twice has no effect but to count in `released_twice`.
        """
        if not self._turns.give_back(placement, cost):
            self.released_twice += 1
            return []
        if self._recalls is not None and cost != 0:
            self._recalls.forget(placement.request.id)
        return self._turns.fill(now) if self.waiting.size else []

    def changed(self, now: float) -> list[Placement]:
        """Take in that EndpointViews were edited, and return who goes next."""
        self._placing.forget()
        self._measure(now)
        return self._turns.fill(now)

    def tick(self, now: float) -> None:
        """Take in that time has passed or a load was read: the watermarks move."""
        self._measure(now)

    def expire(self, now: float) -> list[Request]:
        """Remove and return the waiting requests whose deadline has come, soonest first.

        Those that have waited too long to be started are refused (`take_others`).
        """
        return self._turns.expire(now)

    def recheck(self, now: float) -> list[tuple[Request, Rejected]]:
        """Remove what waits for something that no usable endpoint has now, each with its error.

        For after `set_endpoints` or a long outage; O(waiting).
        """
        hopeless = [r for r in self.waiting if not self._placing.eligible(r, now)]
        for request in hopeless:
            self._turns.leave(request)
        return [(r, unservable(r, self.pool, self.endpoints)) for r in hopeless]

    def _measure(self, now: float) -> None:
        self._entrance.measure(self.endpoints.values(), now)
        if self.guards is not None and self.admission is not None:
            self.guards.short_first = self.admission.short_first

    def _let_in(self, request: Request, now: float) -> None:
        """Let a request into the queue, if need be in the place of a lower class's youngest."""
        if self._entrance.is_open(request, now):
            return
        for victim in self._entrance.let_in(request, now):
            self._turns.leave(victim)
            self.displaced += 1
            self._turns.others.refused.append((victim, self._entrance.displaced(now)))
