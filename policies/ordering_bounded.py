"""Shortest first, but hardly anybody later than first come, first served would have had it.

Theory of operation. The order of a work-conserving queue does not change when how much work is
done. So the moment at which a request would have started first come, first served is known while
another order rules: when as much work has left the queue as had come before it. `Pace` keeps that
account, and with it the longest such wait of late. It also looks ahead: who comes now would wait
for all that waits, at the pace of late, and in a rush that is known before anybody has waited so
long. A request that has waited nearly as long as the longer of both is *late*. The oldest late one
goes next while late ones got less than `share` of the work; the rest goes shortest first. So the
bulk of the long requests pays little for what the short ones gain, and nobody's wait grows without
end.

The largest requests (the top `large` share of sizes) are late only at `patience` times that wait:
they are few, each of them holds up many, and their own service outweighs the longer wait. So are
others, while fewer than one request in a hundred was late: what a calm hour has saved is spent in
the rush that needs it. As many as may still be late, for each that waits now, are excused when
their time has come, if they are among as large a share of the sizes.

Size is predicted service. A waiting request's is read again, with `uncached`, at most every
`reread_s` seconds or `reread_dispatches` dispatches, and only of the heads of rungs, each a factor
of the square root of two wide.

When not to use it: where predictions are poor; where the very largest requests matter most (their
longest wait is up to `patience` times what first come, first served has); and it knows no tenants.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import log2
from typing import TYPE_CHECKING

from .ladder import Ages, Ladder
from .service import service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Request
    from .ladder import Waiter

_BINS_PER_DOUBLING = 8
_BINS_PER_RUNG = 4
_BINS = 48 * _BINS_PER_DOUBLING
_FEW = 100
"""Sizes seen before any is thought to be among the largest."""
_REMEMBER = 2000
"""Sizes seen before they count half."""
_SPENT_FADES = 0.999
_WAIT_FADES = 1 - 1 / 20_000
"""Slowly: what the last rush hour took is what the next one may take."""
_SOON = 0.97
"""Of such a wait: whoever has become late is not served at once. docs/scheduling.md has others."""
_MAY_BE_LATE = 0.01
"""Share of all requests, those that never waited too: the p99 of the waits stays what it was."""
_LATE = 1.1
"""How many bounds one that is not excused may wait before it counts as one of the hundredth."""
_MOST_EXCUSED = 0.5
"""Share of the sizes: whoever is shorter than half of all is never excused."""


class _Top:
    """From which bin on sizes are in the top share that was last asked for."""

    __slots__ = ("above", "cut")

    def __init__(self) -> None:
        self.cut = _BINS
        self.above = 0.0
        """How many were seen from there on."""

    def holds(self, bin_: int, counts: list[float], most: float) -> bool:
        """Tell whether a bin is among the highest, which hold at most so many."""
        while self.above > most:
            self.above -= counts[self.cut]
            self.cut += 1
        while self.cut and self.above + counts[self.cut - 1] <= most:
            self.cut -= 1
            self.above += counts[self.cut]
        return bin_ >= self.cut


class Pace:
    """What first come, first served would have made of the same requests, and how large they are.

    Shared by the queues of a pool, so that one tenant's is held to what all would have waited.
    """

    __slots__ = (
        "_came",
        "_counts",
        "_credit",
        "_done",
        "_left",
        "_longest",
        "_seen",
        "_since",
        "_took",
        "_tops",
        "_turns",
        "_waiting",
    )

    def __init__(self) -> None:
        self._turns: deque[tuple[float, float]] = deque()
        """Work that had come before each waiting request, and when it came, in that order."""
        self._came = 0.0
        self._left = 0.0
        self._longest = 0.0
        self._counts = [0.0] * _BINS
        self._seen = 0.0
        self._tops = (_Top(), _Top())
        """Of the large, and of those that may be excused."""
        self._waiting = 0
        self._credit = 0.0
        """How many more may be late."""
        self._done = 0.0
        """Work that left the queue of late."""
        self._took = 0.0
        """Seconds in which it did; those without anybody waiting do not count."""
        self._since = 0.0

    def came(self, size: float, bin_: int, now: float) -> None:
        """Take in a request that waits from now on, the first time or again."""
        if not self._waiting:
            self._since = now
        self._turns.append((self._came, now))
        self._came += size
        if self._seen >= _REMEMBER:
            self._counts = [count / 2 for count in self._counts]
            self._seen /= 2
            for top in self._tops:
                top.above /= 2
        self._counts[bin_] += 1
        self._seen += 1
        self._waiting += 1
        for top in self._tops:
            if bin_ >= top.cut:
                top.above += 1

    def gone(self, size: float, now: float) -> None:
        """Take in that a waiting request's turn has come."""
        self._done = self._done * _SPENT_FADES + size
        self._took = self._took * _SPENT_FADES + now - self._since
        self._since = now
        self._leave(size, now)

    def withdrawn(self, size: float, bin_: int, now: float) -> None:
        """Take in that a request waits no longer, or comes again with another size.

        That is no work done, and its size is none of those seen.
        """
        count = min(1.0, self._counts[bin_])
        self._counts[bin_] -= count
        self._seen -= count
        for top in self._tops:
            if bin_ >= top.cut:
                top.above -= count
        self._leave(size, now)

    def _leave(self, size: float, now: float) -> None:
        self._left += size
        self._waiting -= 1
        turns = self._turns
        while turns and turns[0][0] < self._left:
            wait = now - turns.popleft()[1]
            self._longest = max(wait, self._longest * _WAIT_FADES)

    def bound(self, now: float) -> float:
        """Return how long one may wait, as long as first come, first served has had them wait.

        That is a little less than the longest wait of late, or than one who comes now would have;
        but who first come, first served would not yet have started is not late.
        """
        longest = self._longest
        if not self._turns:
            return _SOON * longest
        if self._done:
            longest = max(longest, (self._came - self._left) * self._took / self._done)
        return max(_SOON * longest, now - self._turns[0][1])

    def is_large(self, bin_: int, share: float) -> bool:
        """Tell whether sizes of a bin are in the top share of those seen of late."""
        if self._seen < _FEW:
            return False
        return self._tops[0].holds(bin_, self._counts, share * self._seen)

    def placed(self) -> None:
        """Take in that a request is placed, whether it waited or not."""
        self._credit = self._credit * _WAIT_FADES + _MAY_BE_LATE

    def was_late(self) -> None:
        """Take in that a request which was not excused is late."""
        self._credit -= 1.0

    def excuse(self, bin_: int) -> bool:
        """Excuse one that waits, of that size, if it is large for how many more may be late."""
        if self._credit < 1.0 or self._seen < _FEW:
            return False
        share = min(_MOST_EXCUSED, self._credit / max(1, self._waiting))
        if not self._tops[1].holds(bin_, self._counts, share * self._seen):
            return False
        self._credit -= 1.0
        return True


@dataclass(slots=True)
class Bounded:
    """Orders by size, and by age among the late."""

    share: float = 0.68
    """Of the work that late requests may take before shorter ones."""
    large: float = 0.015
    """Share of the requests that are thought large."""
    patience: float = 4.0
    """How many bounds a large one may wait."""
    reread_s: float = 0.05
    reread_dispatches: int = 8
    uncached: Callable[[Request], int] | None = None
    """Uncached prompt tokens of a waiting request as they are now."""
    pace: Pace = field(default_factory=Pace, repr=False)
    rank_changes: int = 0
    """Heads whose size has changed while they waited."""
    name: str = "bounded"
    by_size: bool = True
    _by_size: Ladder = field(default_factory=Ladder, init=False, repr=False)
    _by_age: Ages = field(default_factory=Ages, init=False, repr=False)
    _large: Ages = field(default_factory=Ages, init=False, repr=False)
    _known: dict[str, Waiter] = field(default_factory=dict[str, "Waiter"], init=False, repr=False)
    _now: float = field(default=0.0, init=False)
    _work: float = field(default=0.0, init=False)
    _helped: float = field(default=0.0, init=False)
    _read_at: float = field(default=0.0, init=False)
    _dispatched: int = field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, request: Request, now: float) -> None:
        """Take a request into the queue; ValueError when it waits already."""
        if request.id in self._known:
            raise ValueError(f"{request.id!r} is already waiting")
        self._now = max(self._now, now)  # one that is predicted anew comes when it first came
        size = self._size(request)
        bin_ = _bin(size)
        waiter = self._by_size.add(request, size, bin_ // _BINS_PER_RUNG)
        self._known[request.id] = waiter
        (self._large if self.pace.is_large(bin_, self.large) else self._by_age).add(waiter)
        self.pace.came(size, bin_, now)

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        waiter = self._known.get(request.id)
        if waiter is None:
            return False
        if waiter.request is not request and waiter.request.shape != request.shape:
            return False  # another try of it waits, which may go elsewhere
        self._forget(waiter)
        self.pace.withdrawn(waiter.came, _bin(waiter.came), self._now)
        return True

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Remove and return the request that is next and `fits`; None when none does."""
        self._now = now
        if self.uncached is not None and self._is_time(now):
            self._reread(now)
        bound = self.pace.bound(now)
        waiter = self._oldest_late(now, bound, fits)
        helped = waiter is not None
        if waiter is None:
            waiter = self._by_size.first(fits)
            if waiter is None:
                return None
        self._forget(waiter)
        self.pace.gone(waiter.came, now)
        if not waiter.excused and now - waiter.arrived > _LATE * bound:
            self.pace.was_late()
        size = waiter.came
        self._work = self._work * _SPENT_FADES + size
        self._helped = self._helped * _SPENT_FADES + (size if helped else 0.0)
        self._dispatched += 1
        return waiter.request

    def ahead(self, request: Request) -> float:
        """Count those that would go before it if it came now: none larger by a rung."""
        number = _bin(service_of(request)) // _BINS_PER_RUNG
        return sum(len(rung) for rung in self._by_size if rung.number <= number)

    def started(self, request: Request, cost: float, now: float) -> None:  # noqa: ARG002 - only that
        """Take in that a request is placed, whether it waited or not."""
        self.pace.placed()

    def settled(self, request: Request, charged: float, cost: float) -> None:
        """See `Charged`."""

    def _oldest_late(
        self, now: float, bound: float, fits: Callable[[Request], bool]
    ) -> Waiter | None:
        if self._helped > self.share * self._work:
            return None
        ages, before = self._by_age, now - bound
        waiter = ages.oldest(before, fits)
        while waiter is not None and self.pace.excuse(_bin(waiter.came)):
            waiter.excused = True
            ages.leave(waiter)
            self._large.add(waiter)
            waiter = ages.oldest(before, fits)
        if waiter is None:
            waiter = self._large.oldest(now - self.patience * bound, fits)
        return waiter

    def _forget(self, waiter: Waiter) -> None:
        """Take one that leaves out of all that is known of it."""
        self._by_size.remove(waiter)
        del self._known[waiter.request.id]

    def _size(self, request: Request) -> float:
        if self.uncached is None:
            return service_of(request)
        return service_of(request, uncached=self.uncached(request))

    def _is_time(self, now: float) -> bool:
        return self._dispatched >= self.reread_dispatches or now - self._read_at >= self.reread_s

    def _reread(self, now: float) -> None:
        """Put heads whose size has changed where they belong now."""
        self._read_at, self._dispatched = now, 0
        for rung in list(self._by_size):
            waiter = rung.head
            size = self._size(waiter.request)
            if size != waiter.size:
                self._by_size.move(waiter, size, _bin(size) // _BINS_PER_RUNG)
                self.rank_changes += 1


def _bin(size: float) -> int:
    return min(_BINS - 1, int(log2(size) * _BINS_PER_DOUBLING))
