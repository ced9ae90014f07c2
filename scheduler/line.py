"""Those that wait in one pool.

Four parties keep account of them: the ordering and the guards, who say whose turn it is, the books
(`waiting`), and the reserves. A request enters and leaves all of them at once, here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .guards import Guards
from .waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Ordering, Request

    from .cost import Cost
    from .guards import GuardSettings
    from .places import Places


class Line:
    """Who waits, and who goes next."""

    __slots__ = ("_cost", "_places", "_reserves", "_turn", "guards", "next", "ordering", "waiting")

    def __init__(
        self,
        ordering: Ordering,
        *,
        cost: Cost,
        places: Places,
        guards: GuardSettings | None,
        sizes: bool,
    ) -> None:
        """`sizes`: the guards are to know who is shortest."""
        self.ordering = ordering
        self.waiting = Waiting(ranked=guards is not None)
        self.guards: Guards | None = None
        if guards is not None:
            self.guards = Guards(guards, ordering, self.waiting.is_waiting, sizes=sizes)
        self._cost = cost
        self._places = places
        self._reserves = places.reserves
        self._turn = ordering.next if self.guards is None else self.guards.next
        self.next: Callable[[float, Callable[[Request], bool]], Request | None]
        """Return the first request that fits, which is then to be taken; None when none does."""
        self.next = self._turn if self._reserves is None else self._next_of_reserves

    def predicted(self, request: Request) -> float:
        """Return the cost that is predicted for a request."""
        cost = self._cost  # written out: a call by keywords takes three times as long
        return cost.a * request.uncached_tokens + cost.b * request.output_tokens_estimate

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; it keeps its place by its `sequence`."""
        self.ordering.add(request, now)
        if self._reserves is not None:
            self._reserves.waits(request)
        if self.guards is None:
            self.waiting.add(request, request.deadline)
            return
        until = self.guards.add(request, self.predicted(request))
        self.waiting.add(request, min(request.deadline, until))

    def take(self, request_id: str) -> Request | None:
        """Take out a request whose turn has come; None when it does not wait."""
        request = self.waiting.remove(request_id)
        if request is not None and self._reserves is not None:
            self._reserves.gone(request)
        if request is not None and self.guards is not None:
            self.guards.remove(request)
        return request

    def discard(self, request_id: str) -> bool:
        """Take out a request that waits no longer; False when it does not wait."""
        request = self.take(request_id)
        return request is not None and self.ordering.discard(request)

    def _next_of_reserves(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Return the next request of a reserve that is owed a place, else of all."""
        for name in self._places.owed():
            request = self._turn(now, partial(_of_reserve, name, fits))
            if request is not None:
                return request
        return self._turn(now, fits)


def _of_reserve(name: str, fits: Callable[[Request], bool], request: Request) -> bool:
    return request.reserve == name and fits(request)
