"""What an ordering may not do: make anybody wait for ever, or long requests wait for short ones.

Theory of operation. The ordering decides, and the guards correct it in three ways:

- a request past its longest wait is overdue: it goes first within its tenant's turn, the highest
  class before the others, so that whoever has to be refused is of the lowest;
- across tenants overdue requests jump the order while they took less than `overdue_share` of the
  cost that was dispatched;
- where the ordering looks at size, the oldest long request goes next while long ones got less than
  `long_share` of that cost.

So the ordering keeps what these shares leave, and whatever it promises about fairness is looser by
them and no more. What has not started `grace` past its longest wait is refused by the dispatcher.

A share is held as credit in units of cost: each dispatch earns `share * cost`, each use spends its
cost, and a use is allowed while there is credit. Unused credit is capped at the largest cost seen,
so an idle hour buys no burst.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from forebay.policies.lanes import Lanes

from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Ordering, Request


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How far the guards go."""

    longest_wait: float = 300.0
    """Seconds, of requests whose class names none."""
    grace: float = 0.1
    """Of the longest wait: what has not started by then is refused."""
    overdue_share: float = 0.25
    long_share: float = 0.1
    long_cost: float = 8192.0
    """From this predicted cost on a request is long."""
    recalls: int = 2
    """How often one request may be called back for a higher class; 0 never."""
    early: bool = True
    """Refuse at once what is expected to wait until it gives up."""


class Credit:
    """A share of dispatched cost that may be used later, but not much later."""

    __slots__ = ("_left", "_most", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._left = 0.0
        self._most = 0.0

    @property
    def open(self) -> bool:
        """Whether it may be used now."""
        return self._left > 0

    def earn(self, cost: float) -> None:
        """Take in that something was dispatched."""
        self._most = max(self._most, cost)
        left = self._left + self.share * cost
        self._left = min(self._most, left)

    def spend(self, cost: float) -> None:
        """Take in that it was used; it never owes more than the largest cost."""
        self._left = max(-self._most, self._left - cost)


class Guards:
    """Watches over one pool's ordering; see the module's docstring."""

    def __init__(
        self,
        settings: GuardSettings,
        ordering: Ordering,
        alive: Callable[[Request], bool],
        *,
        sizes: bool = False,
    ) -> None:
        self.settings = settings
        self.forced = 0
        """Overdue requests that were put before what the ordering had chosen."""
        self.starved = 0
        """Requests that started later than `grace` past their longest wait: always 0."""
        self.short_first = False
        """Take a tenant's shortest in its turn; needs `sizes`."""
        self._ordering = ordering
        self._overdue_credit = Credit(settings.overdue_share)
        self._long_credit = Credit(settings.long_share)
        self._alive = alive
        self._waited: dict[float, Timeline] = {}
        """What is not yet overdue, by longest wait: who came first is due first."""
        self._next_due = inf
        """Nobody becomes overdue before then."""
        self._overdue = Lanes()
        self._overdue_of: dict[str, Lanes] = {}
        self._keeps_long = bool(settings.long_share) and getattr(ordering, "by_size", False)
        self._long = Lanes()
        self._longs = 0
        self._sizes: dict[str, Lanes] | None = {} if sizes else None
        self._jumped: str | None = None

    @property
    def overdue(self) -> int:
        """How many wait past their longest wait, as of the last event."""
        return len(self._overdue)

    def due(self, request: Request) -> float:
        """Return when a request becomes overdue."""
        longest = request.longest_wait
        return request.arrived + (self.settings.longest_wait if longest is None else longest)

    def give_up(self, request: Request) -> float:
        """Return when it has waited too long to be started at all; never for one that was tried."""
        if request.avoid:
            return inf
        longest = request.longest_wait
        if longest is None:
            longest = self.settings.longest_wait
        return request.arrived + longest + self.settings.grace * longest

    def patience(self, request: Request) -> float:
        """Return how long it may wait at all, in seconds."""
        longest = request.longest_wait
        if longest is None:
            longest = self.settings.longest_wait
        return longest + self.settings.grace * longest

    def add(self, request: Request, cost: float) -> float:
        """Watch a request that waits; return when it gives up."""
        longest = request.longest_wait
        if longest is None:
            longest = self.settings.longest_wait
        line = self._waited.get(longest)
        if line is None:
            line = self._waited[longest] = Timeline(self._alive)
        line.add(request)
        due = request.arrived + longest
        self._next_due = min(self._next_due, due)
        if self._keeps_long and cost >= self.settings.long_cost:
            self._long.add(request, (request.sequence, 0.0))
            self._longs += 1
        if self._sizes is not None:
            lanes = self._sizes.get(request.tenant)
            if lanes is None:
                lanes = self._sizes[request.tenant] = Lanes()
            lanes.add(request, (cost, request.sequence))
        return inf if request.avoid else due + self.settings.grace * longest

    def remove(self, request: Request) -> None:
        """Forget a request that waits no longer."""
        if self._overdue_of and self._overdue.discard(request):
            _drop(self._overdue_of, request)
        if self._longs and self._long.discard(request):
            self._longs -= 1
        if self._sizes is not None:
            _drop(self._sizes, request)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Take the next request out of the ordering; None when none fits."""
        if now >= self._next_due:
            self._age(now)
        ordering = self._ordering
        if self._overdue_of and self._overdue_credit.open:
            request = self._overdue.first(fits)
            if request is not None:
                ordering.discard(request)
                self._jumped = request.id
                self.forced += 1
                return request
        if self._longs and self._long_credit.open:
            request = self._long.first(fits)
            if request is not None:
                ordering.discard(request)
                return request
        request = ordering.next(now, fits)
        return None if request is None else self._within_turn(request, now, fits)

    def started(self, request: Request, cost: float, now: float) -> None:
        """Take in that a request is placed, from the queue or at once."""
        self._overdue_credit.earn(cost)
        if self._jumped == request.id:
            self._overdue_credit.spend(cost)
            self._jumped = None
        if self._keeps_long:
            self._long_credit.earn(cost)
            if cost >= self.settings.long_cost:
                self._long_credit.spend(cost)
        longest = request.longest_wait
        if longest is None:
            longest = self.settings.longest_wait
        if now - request.arrived > longest and now > self.give_up(request):
            self.starved += 1

    def _within_turn(self, chosen: Request, now: float, fits: Callable[[Request], bool]) -> Request:
        """Put a tenant's overdue request, or its shortest, before the one that was chosen."""
        better = None
        overdue = self._overdue_of.get(chosen.tenant)
        if overdue is not None:
            better = overdue.first(fits)
            self.forced += better is not None and better is not chosen
        elif self.short_first and self._sizes is not None:
            better = self._sizes[chosen.tenant].first(fits)
        if better is None or better is chosen:
            return chosen
        # Out before in: the tenant has something waiting all the while, so its turn is its own.
        self._ordering.add(chosen, now)
        self._ordering.discard(better)
        return better

    def _age(self, now: float) -> None:
        """Find out who has become overdue."""
        self._next_due = inf
        for longest, line in self._waited.items():
            while (request := line.first()) is not None:
                due = request.arrived + longest
                if due > now:
                    self._next_due = min(self._next_due, due)
                    break
                line.pop()
                self._late(request, due)

    def _late(self, request: Request, due: float) -> None:
        if request.id in self._overdue:  # it came back, and stood in the line twice
            return
        place = (float(-request.sla_rank), due)
        self._overdue.add(request, place)
        lanes = self._overdue_of.get(request.tenant)
        if lanes is None:
            lanes = self._overdue_of[request.tenant] = Lanes()
        lanes.add(request, place)


def _drop(lanes_of: dict[str, Lanes], request: Request) -> None:
    lanes = lanes_of.get(request.tenant)
    if lanes is not None and lanes.discard(request) and not len(lanes):
        del lanes_of[request.tenant]
