"""Two queues, one for short and one for long requests, each with an ordering of its own.

Long requests get `long_share` of the cost that is dispatched while both wait, whatever the
orderings inside think of size; a queue that cannot move yields to the other. It is an option beside
the orderings (`scheduling.double_queue`), so that one never waits for the other kind.

When not to use it: with `fair` or `ml` inside each queue shares by tenant on its own, so a tenant
with both kinds of requests gets a turn in both; and with few long requests a share of their own
only slows the short ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .contracts import Charged, Foretelling
from .service import service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Ordering, Request


class DoubleQueue:
    """Takes turns between a short and a long queue by cost."""

    name = "double"

    def __init__(
        self, make: Callable[[], Ordering], *, long_cost: float, long_share: float = 0.3
    ) -> None:
        self._short = make()
        self._long = make()
        self._long_cost = long_cost
        self._share = long_share
        self._owed = 0.0
        """Cost that long requests are behind their share; negative when they are ahead."""

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    @property
    def spread(self) -> float:
        """How far the waiting tenants' virtual times are apart, in the queue where it is more."""
        return max(getattr(queue, "spread", 0.0) for queue in (self._short, self._long))

    @property
    def rank_changes(self) -> int:
        """Heads overtaken while they waited."""
        return sum(getattr(queue, "rank_changes", 0) for queue in (self._short, self._long))

    def add(self, request: Request, now: float) -> None:
        """Take a request into its queue; ValueError when it waits already."""
        self._queue(request).add(request, now)

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        return self._queue(request).discard(request)

    def ahead(self, request: Request) -> float:
        """Return about how many of its own queue would go before it if it came now."""
        queue = self._queue(request)
        return queue.ahead(request) if isinstance(queue, Foretelling) else len(queue)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Remove and return the next request of the queue whose turn it is, else of the other."""
        first, second = self._short, self._long
        if self._owed > 0:
            first, second = second, first
        asked: dict[object, bool] = {}

        def once(request: Request) -> bool:
            shape = request.shape
            if shape not in asked:
                asked[shape] = fits(request)
            return asked[shape]

        return first.next(now, once) or second.next(now, once)

    def started(self, request: Request, cost: float, now: float) -> None:
        """Charge the queue, and the ordering inside where that shares out cost."""
        both = len(self._short) > 0 and len(self._long) > 0
        if service_of(request) >= self._long_cost:
            self._owed -= (1.0 - self._share) * cost if both else 0.0
        else:
            self._owed += self._share * cost if both else 0.0
        queue = self._queue(request)
        if isinstance(queue, Charged):
            queue.started(request, cost, now)

    def settled(self, request: Request, charged: float, cost: float) -> None:
        """Pass a correction on."""
        queue = self._queue(request)
        if isinstance(queue, Charged):
            queue.settled(request, charged, cost)

    def _queue(self, request: Request) -> Ordering:
        return self._long if service_of(request) >= self._long_cost else self._short
