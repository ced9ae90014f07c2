"""One pool's queue and placement: who goes next, and where.

Theory of operation. A request is bound to an endpoint as late as possible: it waits here, not in an
engine, until an endpoint that can serve it has room. One rule carries everything:

    between two events, no endpoint with room could serve a request that waits.

So a request that comes while others wait may still be placed at once (whoever waits cannot use the
endpoint it takes), and an event only has to hand out the room it made. Every event that can make
room ends in `_fill`; whoever edits an EndpointView calls `changed` at once.

Endpoints are chosen by filter -> score -> pick. A filter that says `stable = True` promises that
its answer depends on the request's shape and on `usable`, `models`, `routes` and `name` only; it is
asked once a shape, then again after `changed` or `set_endpoints`. The other filters are asked each
time, after the stable ones.

Costs: a placement is O(endpoints), whatever waits; to queue, leave or expire is O(log waiting); an
event that makes room looks at most once at each waiting shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import InvalidRequest, Overloaded, Placement
from forebay.policies.filter_capability import has_model, has_route
from forebay.policies.filter_room import Room
from forebay.policies.heap import Heap

from .window import SlidingCount

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from random import Random

    from forebay.policies.contracts import (
        EndpointView,
        Filter,
        Ordering,
        Pick,
        Rejected,
        Request,
        Score,
    )

_MOST_SHAPES = 4096
"""Remembered shapes: callers may invent model names where endpoints take any."""
_RATE_WINDOW_S = 10.0
_LONGEST_RETRY_AFTER_S = 60.0


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
    ) -> None:
        self.pool = pool
        self.endpoints: dict[str, EndpointView] = {}
        self.queued_bytes = 0
        self.released_twice = 0
        """Releases of what was not in flight: a bug of the caller, without effect here."""
        self._ordering = ordering
        self._stable = [f for f in filters if getattr(f, "stable", False)]
        self._moving = [f for f in filters if not getattr(f, "stable", False)]
        self._limited = any(isinstance(f, Room) for f in filters)
        self._scores = list(scores)
        self._pick = pick
        self._rng = rng
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._eligible: dict[Hashable, Sequence[EndpointView]] = {}
        self._placed: dict[int, Placement] = {}
        self._deadlines: Heap[Request] = Heap()
        self._arrivals: Heap[Request] = Heap()
        self._started = SlidingCount(_RATE_WINDOW_S)

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._deadlines)

    @property
    def in_flight(self) -> int:
        """How many placements are not released."""
        return len(self._placed)

    @property
    def remembered_shapes(self) -> int:
        """How many shapes have their endpoints remembered."""
        return len(self._eligible)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` next has something to do; None when nothing waits."""
        top = self._deadlines.top()
        return None if top is None else top[0]

    def oldest_wait(self, now: float) -> float:
        """Return how long the oldest waiting request has been here, in seconds; 0 when none is."""
        top = self._arrivals.top()
        return 0.0 if top is None else max(0.0, now - top[0])

    def set_endpoints(self, views: Iterable[EndpointView]) -> None:
        """Replace the endpoints; call `changed` after. What is in flight stays counted by name."""
        self.endpoints = {view.name: view for view in views}
        for view in self.endpoints.values():
            view.in_flight = view.in_flight_tokens = 0
        for placement in self._placed.values():
            view = self.endpoints.get(placement.endpoint)
            if view is not None:
                view.in_flight += 1
                view.in_flight_tokens += placement.tokens
        self._eligible.clear()

    def set_limits(self, *, max_requests: int, max_bytes: int) -> None:
        """Change what may wait; what waits already stays."""
        self._max_requests = max_requests
        self._max_bytes = max_bytes

    def submit(self, request: Request, now: float) -> Placement | None:
        """Place a request, or queue it (None).

        A request that comes back (`avoid` is not empty) keeps its place by its `sequence` and is
        queued even where the queue is full: it was let in before.

        Raises Overloaded, 429 when the queue is full and 503 when nothing usable could ever serve
        it, and InvalidRequest (404) when no endpoint of the pool has the route or the model.
        """
        candidates = self._candidates(request, now)
        if candidates:
            return self._place(request, candidates, now)
        if not self._eligible_for(request, now):
            raise self._unservable(request)
        if not request.avoid:
            self._admit(request, now)
        self._ordering.add(request, now)
        self._deadlines.add(request.deadline, request.id, request)
        self._arrivals.add(request.arrived, request.id, request)
        self.queued_bytes += request.body_bytes
        return None

    def could_serve(self, request: Request, now: float) -> bool:
        """Tell whether an endpoint that is usable now could serve it, with room or without."""
        return bool(self._eligible_for(request, now))

    def leave(self, request: Request) -> bool:
        """Forget a waiting request whose caller left; False when it does not wait."""
        waiting = self._forget(request.id)
        return waiting is not None and self._ordering.discard(waiting)

    def release(self, placement: Placement, now: float) -> list[Placement]:
        """Give a place back, once, and return who goes next.

        Releasing twice has no effect but to count in `released_twice`.
        """
        if self._placed.pop(id(placement), None) is None:
            self.released_twice += 1
            return []
        view = self.endpoints.get(placement.endpoint)
        if view is not None:
            view.in_flight -= 1
            view.in_flight_tokens -= placement.tokens
        return self._fill(now) if len(self._ordering) else []

    def changed(self, now: float) -> list[Placement]:
        """Take in that EndpointViews were edited, and return who goes next."""
        self._eligible.clear()
        return self._fill(now)

    def expire(self, now: float) -> list[Request]:
        """Remove and return the waiting requests whose deadline has come, soonest first."""
        expired: list[Request] = []
        while (top := self._deadlines.top()) is not None and top[0] <= now:
            self.leave(top[1])
            expired.append(top[1])
        return expired

    def recheck(self, now: float) -> list[tuple[Request, Rejected]]:
        """Remove what waits for something that no usable endpoint has now, each with its error.

        For after `set_endpoints` or a long outage; O(waiting).
        """
        hopeless = [r for r in self._deadlines if not self._eligible_for(r, now)]
        for request in hopeless:
            self.leave(request)
        return [(request, self._unservable(request)) for request in hopeless]

    def _eligible_for(self, request: Request, now: float) -> Sequence[EndpointView]:
        """Return the endpoints that could serve the request if they had room."""
        shape = request.shape
        found = self._eligible.get(shape)
        if found is None:
            found = list(self.endpoints.values())
            for keep in self._stable:
                found = keep(request, found, now)
            if len(self._eligible) >= _MOST_SHAPES:
                self._eligible.clear()
            self._eligible[shape] = found
        return found

    def _candidates(self, request: Request, now: float) -> Sequence[EndpointView]:
        """Return the endpoints that may take the request now."""
        found = self._eligible.get(request.shape)
        if found is None:
            found = self._eligible_for(request, now)
        for keep in self._moving:
            found = keep(request, found, now)
        return found

    def _place(self, request: Request, candidates: Sequence[EndpointView], now: float) -> Placement:
        scores = self._rate(request, candidates, now)
        index = self._pick(candidates, scores, self._rng)
        view = candidates[index]
        tokens = request.uncached_tokens + request.output_tokens_estimate
        placement = Placement(request, view.name, tokens, now, scores[index])
        view.in_flight += 1
        view.in_flight_tokens += tokens
        self._placed[id(placement)] = placement
        self._started.add(now)
        return placement

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

    def _fill(self, now: float) -> list[Placement]:
        """Hand out whatever room there is."""
        placements: list[Placement] = []
        found: dict[str, Sequence[EndpointView]] = {}

        def fits(request: Request) -> bool:
            candidates = self._candidates(request, now)
            if candidates:
                found[request.id] = candidates
            return bool(candidates)

        while len(self._ordering) and not self._full():
            request = self._ordering.next(now, fits)
            if request is None:
                break
            self._forget(request.id)
            placements.append(self._place(request, found[request.id], now))
            found.clear()
        return placements

    def _full(self) -> bool:
        """Tell, without asking anybody, that nothing waiting can move: no endpoint has room."""
        if not self._limited:
            return False
        for view in self.endpoints.values():
            if view.in_flight < view.limit and view.room > 0:  # room alone takes twice as long
                return False
        return True

    def _forget(self, request_id: str) -> Request | None:
        request = self._deadlines.remove(request_id)
        if request is not None:
            self._arrivals.remove(request_id)
            self.queued_bytes -= request.body_bytes
        return request

    def _admit(self, request: Request, now: float) -> None:
        if self.queued >= self._max_requests:
            full = f"{self.queued} requests wait"
        elif self.queued_bytes + request.body_bytes > self._max_bytes:
            full = f"{self.queued_bytes} bytes of requests wait"
        else:
            return
        raise Overloaded(
            f"pool {self.pool!r} is full: {full}; try again later",
            retry_after=self._retry_after(now),
        )

    def _retry_after(self, now: float) -> float:
        rate = self._started.rate(now)
        if not rate:
            return _RATE_WINDOW_S
        return min(_LONGEST_RETRY_AFTER_S, max(1.0, (self.queued + 1) / rate))

    def _unservable(self, request: Request) -> Rejected:
        """Say why no endpoint can serve it: nothing such here (404), or nothing usable (503)."""
        views = self.endpoints.values()
        have_route = [view for view in views if has_route(view, request)]
        if views and not have_route:
            return InvalidRequest(
                f"no endpoint of pool {self.pool!r} has the route {request.route.value}",
                status=404,
                code="route_not_found",
            )
        if views and not any(has_model(view, request) for view in have_route):
            return InvalidRequest(
                f"no endpoint of pool {self.pool!r} serves the model {request.model!r}"
                f" on {request.route.value}",
                status=404,
                code="model_not_found",
                param="model",
            )
        if request.endpoint is not None and request.endpoint not in self.endpoints:
            return InvalidRequest(
                f"endpoint {request.endpoint!r} has left pool {self.pool!r}",
                status=404,
                code="endpoint_not_found",
            )
        untried = " and not yet tried" if request.avoid else ""
        return Overloaded(
            f"no endpoint of pool {self.pool!r} that could serve this is healthy{untried};"
            " try again later",
            status=503,
            code="no_healthy_endpoint",
        )
