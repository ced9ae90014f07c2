"""Start-time fair queueing over tenants, and what may go on inside a tenant's turn.

Theory of operation. Each tenant has a virtual time: the cost that was dispatched for it, divided by
its weight. The waiting tenant that is furthest behind has the next turn. Cost is charged when a
request is dispatched, by its prediction, and corrected when its true cost is known. A tenant that
had nothing waiting is lifted to the virtual time of the latest turn, so that nobody saves up time
while away, and nobody who was away pays for it.

While two tenants wait, what each got divided by its weight differs by no more than one largest
charge of each, plus the most by which the predictions of what was in flight at once were wrong: a
correction makes good for it in the turns after. Splitting a request, asking for many tiny ones or
lying about max_tokens changes how a tenant's cost is cut, not how much of it a turn is worth.

When not to use it: where some tenants' requests can go to few endpoints only, their turns come
late and together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from .contracts import Foretelling
from .ordering_bounded import Bounded, Pace
from .ordering_fcfs import Fcfs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .contracts import Ordering, Request


_FEW = 1024


class _Tenant:
    """One tenant's virtual time and its waiting requests."""

    __slots__ = ("in_flight", "name", "seat", "time", "waiting", "weight")

    def __init__(self, name: str, waiting: Ordering, time: float) -> None:
        self.name = name
        self.waiting = waiting
        self.time = time
        self.seat: float | None = None
        """The virtual time under which it stands among those who wait; None when nothing does."""
        self.in_flight = 0
        self.weight = 0.0
        """Of the request that it began to wait with."""


class Fair:
    """Shares cost by weight; inside a tenant's turn `inside` decides, first come by default."""

    def __init__(self, *, inside: Callable[[], Ordering] = Fcfs, name: str = "fair") -> None:
        self.name = name
        self._inside = inside
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[tuple[float, str]] = []
        self._shapes: dict[Hashable, int] = {}
        self._now = 0.0
        """Virtual time: where the latest turn started."""
        self._most = _FEW
        """As many tenants are known before those that are gone are forgotten."""
        self._size = 0
        self._weights = 0.0
        """Of the tenants that wait, together."""
        self._changes_before = 0
        """Rank changes of tenants that are forgotten."""
        self._taken: str | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def spread(self) -> float:
        """How far the waiting tenants' virtual times are apart."""
        return self._turns[-1][0] - self._turns[0][0] if self._turns else 0.0

    @property
    def rank_changes(self) -> int:
        """Heads overtaken inside their tenants' queues."""
        known = sum(getattr(t.waiting, "rank_changes", 0) for t in self._tenants.values())
        return self._changes_before + known

    def virtual_times(self) -> dict[str, float]:
        """Return the virtual time of each tenant that is known."""
        return {tenant.name: tenant.time for tenant in self._tenants.values()}

    def add(self, request: Request, now: float) -> None:
        """Take a request into the queue; ValueError when it waits already."""
        tenant = self._find(request.tenant)
        tenant.waiting.add(request, now)
        self._size += 1
        shape = request.shape
        self._shapes[shape] = self._shapes.get(shape, 0) + 1
        if tenant.seat is None:
            tenant.time = max(tenant.time, self._now)
            tenant.weight = request.weight
            self._weights += request.weight
            self._seat(tenant)

    def ahead(self, request: Request) -> float:
        """Return how many would go before it if it came now, all tenants' requests being alike."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None or tenant.seat is None:
            own, weights = 0.0, self._weights + request.weight
        else:
            own, weights = self._ahead_inside(tenant.waiting, request), self._weights
        return min(float(self._size), own * max(1.0, weights / request.weight))

    @staticmethod
    def _ahead_inside(waiting: Ordering, request: Request) -> float:
        return waiting.ahead(request) if isinstance(waiting, Foretelling) else len(waiting)

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None or not tenant.waiting.discard(request):
            return False
        self._gone(tenant, request)
        return True

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Remove and return whoever is next of the tenant furthest behind; None when none fits."""
        if len(self._shapes) == 1:  # the usual case: who cannot move tells of all
            tenant = self._tenants[self._turns[0][1]]
            request = tenant.waiting.next(now, fits)
            if request is not None:
                self._gone(tenant, request)
            return request
        known: dict[Hashable, bool] = {}

        def asked(request: Request) -> bool:
            shape = request.shape
            answer = known.get(shape)
            if answer is None:
                answer = known[shape] = fits(request)
            return answer

        for _, name in self._turns:
            tenant = self._tenants[name]
            request = tenant.waiting.next(now, asked)
            if request is not None:
                self._gone(tenant, request)
                return request
            if len(known) == len(self._shapes) and not any(known.values()):
                return None
        return None

    def started(self, request: Request, cost: float, now: float) -> None:  # noqa: ARG002 - virtual time alone
        """Charge the predicted cost of a request that is placed now."""
        tenant = self._find(request.tenant)
        if tenant.seat is None and self._taken != request.id:
            tenant.time = max(tenant.time, self._now)  # it never waited: it has just come
        self._now = max(self._now, tenant.time)
        tenant.in_flight += 1
        self._move(tenant, cost / request.weight)

    def settled(self, request: Request, charged: float, cost: float) -> None:
        """Correct a charge to the true cost; 0 takes it back."""
        tenant = self._find(request.tenant)
        tenant.in_flight = max(0, tenant.in_flight - 1)
        self._move(tenant, (cost - charged) / request.weight)

    def _find(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= self._most:
                self._forget()
            tenant = self._tenants[name] = _Tenant(name, self._inside(), self._now)
        return tenant

    def _forget(self) -> None:
        """Forget who is gone and not ahead: they would come back with the same virtual time."""
        changes = self.rank_changes
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.seat is not None or tenant.in_flight or tenant.time > self._now
        }
        self._changes_before += changes - self.rank_changes
        self._most = 2 * len(self._tenants) + _FEW

    def _gone(self, tenant: _Tenant, request: Request) -> None:
        self._size -= 1
        self._taken = request.id
        shape = request.shape
        left = self._shapes[shape] - 1
        if left:
            self._shapes[shape] = left
        else:
            del self._shapes[shape]
        if not len(tenant.waiting):
            # Nothing is left of rounding once nobody waits.
            self._weights = self._weights - tenant.weight if len(self._turns) > 1 else 0.0
            self._unseat(tenant)

    def _move(self, tenant: _Tenant, by: float) -> None:
        if tenant.seat is None:
            tenant.time += by
        elif by:
            self._reseat(tenant, tenant.time + by)

    def _reseat(self, tenant: _Tenant, time: float) -> None:
        """Move a waiting tenant to another virtual time: mostly it stays between its neighbours."""
        turns, seat = self._turns, (time, tenant.name)
        index = bisect_left(turns, (tenant.seat, tenant.name))
        tenant.time = tenant.seat = time
        after = index + 1
        if (not index or turns[index - 1] < seat) and (after == len(turns) or seat < turns[after]):
            turns[index] = seat
            return
        del turns[index]
        insort(turns, seat)

    def _seat(self, tenant: _Tenant) -> None:
        tenant.seat = tenant.time
        insort(self._turns, (tenant.time, tenant.name))

    def _unseat(self, tenant: _Tenant) -> None:
        if tenant.seat is not None:
            del self._turns[bisect_left(self._turns, (tenant.seat, tenant.name))]
            tenant.seat = None


class Ml(Fair):
    """Fair across tenants, shortest first inside with a bound on lateness (`bounded`).

    `predicts` says that lengths are really predicted; without it all answers are thought alike, and
    this is `fair`. `uncached` and the bounds on reading sizes are those of `bounded`.

    When not to use it: where most requests are of one length; `fair` does the same for less.
    """

    def __init__(
        self,
        *,
        predicts: bool = True,
        reread_s: float = 0.05,
        reread_dispatches: int = 8,
        uncached: Callable[[Request], int] | None = None,
    ) -> None:
        pace = Pace()

        def bounded() -> Ordering:
            return Bounded(
                reread_s=reread_s,
                reread_dispatches=reread_dispatches,
                uncached=uncached,
                pace=pace,
            )

        super().__init__(inside=bounded if predicts else Fcfs, name="ml")
        self.by_size = predicts
        self._pace = pace

    def started(self, request: Request, cost: float, now: float) -> None:
        """Charge the predicted cost of a request that is placed now."""
        self._pace.placed()
        super().started(request, cost, now)
