"""Highest response ratio next: (wait + service) / service, on predicted service.

Short requests go first, and every one rises as it waits, the short ones faster. Comparing all that
wait each time would cost too much, so requests stand on rungs: a rung holds services within a
factor of the square root of two, oldest first, and only heads of rungs are compared, each by its
own service. There are some forty rungs, however many wait.

A head's rank is read when it becomes the head, then again at most every `reread_s` seconds or
`reread_dispatches` dispatches, so that the order neither jitters nor costs more than it brings. At
the same time `uncached`, where given, is asked how many prompt tokens of a head are uncached now,
and a head that became shorter or longer changes its rung.

When not to use it: with poor predictions of long answers it makes the tail longer than `fcfs`; and
it knows no tenants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2
from typing import TYPE_CHECKING

from .lanes import Lanes, Rank
from .service import service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Request

_RUNGS_PER_DOUBLING = 2


@dataclass(slots=True)
class Hrrn:
    """Orders by response ratio, equals by age."""

    reread_s: float = 0.05
    reread_dispatches: int = 8
    uncached: Callable[[Request], int] | None = None
    """Uncached prompt tokens of a waiting request as they are now."""
    rank_changes: int = 0
    """Heads that another overtook while they waited."""
    name: str = "hrrn"
    by_size: bool = True
    _lanes: Lanes = field(init=False, repr=False)
    _now: float = field(default=0.0, init=False)
    _read_at: float = field(default=0.0, init=False)
    _dispatched: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._lanes = Lanes(self._rank)

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, request: Request, now: float) -> None:
        """Take a request into the queue; ValueError when it waits already."""
        self._now = now
        self._put(request, self._service(request))

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        return self._lanes.discard(request)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Remove and return the request of the highest ratio that `fits`; None when none does."""
        self._now = now
        if self._dispatched >= self.reread_dispatches or now - self._read_at >= self.reread_s:
            self._reread(now)
        request = self._lanes.take(fits)
        if request is not None:
            self._dispatched += 1
        return request

    def _service(self, request: Request) -> float:
        if self.uncached is None:
            return service_of(request)
        return service_of(request, uncached=self.uncached(request))

    def _put(self, request: Request, service: float) -> None:
        rung = int(log2(service) * _RUNGS_PER_DOUBLING)
        self._lanes.add(request, (request.arrived, request.sequence), (request.shape, rung))

    def _rank(self, request: Request, place: Rank) -> Rank:
        # Minus (ratio - 1): the greatest ratio first.
        return ((place[0] - self._now) / self._service(request), place[1])

    def _reread(self, now: float) -> None:
        self._read_at, self._dispatched = now, 0
        if self.uncached is not None:
            self._climb()
        self.rank_changes += self._lanes.reread()

    def _climb(self) -> None:
        """Move heads whose service has changed to the rungs where they belong now."""
        for lane in list(self._lanes):
            request = lane.head
            service = self._service(request)
            if lane.key != (lane.shape, int(log2(service) * _RUNGS_PER_DOUBLING)):
                self._lanes.discard(request)
                self._put(request, service)
