"""One tenant's waiting requests by size and by age: what `bounded` is made of.

A request that waits is one `Waiter`, which stands in two places: in a rung of the `Ladder`, with
others of its shape that are about as large, and in a line of `Ages`. Either finds out from the
waiter itself that it has gone, so to leave costs one look, whatever waits: with ten thousand
waiting it is memory that is not at hand which takes the time.

As in `lanes`, requests of one shape can go to the same places, so whoever looks for the next asks
once for each shape that cannot move.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from .contracts import Request

_FEW = 64
"""Dead entries that are never worth a rebuild."""


class Waiter:
    """A request that waits, or has."""

    __slots__ = ("arrived", "came", "excused", "request", "rung", "size", "waits")

    def __init__(self, request: Request, size: float, rung: Rung) -> None:
        self.request = request
        self.arrived: float = request.arrived
        self.came: float = size
        """Its size as it came."""
        self.size: float = size
        """As it was last read."""
        self.rung = rung
        self.waits: bool = True
        self.excused: bool = False
        """It may be late."""


_Entry = tuple[float, int, int, Waiter]
"""Size, sequence, a number of its own, and who."""


class Rung:
    """Requests of one shape and about one size, the smallest first.

    The head of `heap` waits whenever nobody is at work here; others that left stay in it until they
    come to the top, or outnumber those who wait.
    """

    __slots__ = ("dead", "heap", "number", "opened", "seat", "shape")

    def __init__(self, shape: Hashable, number: int, opened: int) -> None:
        self.shape = shape
        self.number = number
        self.opened = opened
        self.heap: list[_Entry] = []
        self.dead = 0
        self.seat: tuple[float, int] | None = None
        """Size and sequence of its head, under which it stands among the others."""

    def __len__(self) -> int:
        return len(self.heap) - self.dead

    @property
    def head(self) -> Waiter:
        """Whoever is first in it."""
        return self.heap[0][3]


class Ladder:
    """Rungs, in the order of their heads."""

    __slots__ = ("_heads", "_opened", "_rungs", "_serial")

    def __init__(self) -> None:
        self._rungs: dict[tuple[Hashable, int], Rung] = {}
        self._heads: list[tuple[float, int, int, Rung]] = []
        self._opened = 0
        self._serial = 0

    def __iter__(self) -> Iterator[Rung]:
        """Go through the rungs in the order of their heads."""
        return (rung for _, _, _, rung in self._heads)

    def add(self, request: Request, size: float, number: int) -> Waiter:
        """Take a request in, on the rung of that number."""
        waiter = Waiter(request, size, self._find(request.shape, number))
        self._push(waiter)
        return waiter

    def move(self, waiter: Waiter, size: float, number: int) -> None:
        """Put a head whose size has changed on the rung of that number."""
        self._pop(waiter.rung)
        waiter.size = size
        waiter.rung = self._find(waiter.request.shape, number)
        self._push(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter."""
        waiter.waits = False
        rung = waiter.rung
        heap = rung.heap
        if heap[0][3] is waiter:
            self._pop(rung)
            return
        rung.dead += 1
        if rung.dead > _FEW and 2 * rung.dead > len(heap):
            rung.heap = [entry for entry in heap if entry[3].waits]
            heapify(rung.heap)
            rung.dead = 0

    def first(self, fits: Callable[[Request], bool]) -> Waiter | None:
        """Return the smallest that `fits`, which is asked once a shape; None when none does."""
        refused: set[Hashable] | None = None
        for _, _, _, rung in self._heads:
            if refused is not None and rung.shape in refused:
                continue
            waiter = rung.heap[0][3]
            if fits(waiter.request):
                return waiter
            if refused is None:
                refused = set()
            refused.add(rung.shape)
        return None

    def _find(self, shape: Hashable, number: int) -> Rung:
        key = (shape, number)
        rung = self._rungs.get(key)
        if rung is None:
            self._opened += 1
            rung = self._rungs[key] = Rung(shape, number, self._opened)
        return rung

    def _push(self, waiter: Waiter) -> None:
        self._serial += 1
        rung = waiter.rung
        heappush(rung.heap, (waiter.size, waiter.request.sequence, self._serial, waiter))
        if rung.heap[0][3] is waiter:
            self._reseat(rung)

    def _pop(self, rung: Rung) -> None:
        heap = rung.heap
        heappop(heap)
        while heap and not heap[0][3].waits:
            heappop(heap)
            rung.dead -= 1
        self._reseat(rung)

    def _reseat(self, rung: Rung) -> None:
        """Move a rung to where its head now belongs; an empty one is closed."""
        heads = self._heads
        seat = rung.seat
        if seat is not None:
            del heads[bisect_left(heads, (seat[0], seat[1], rung.opened))]  # type: ignore[arg-type]  # the rung itself decides nothing
        if not rung.heap:
            rung.seat = None
            del self._rungs[rung.shape, rung.number]
            return
        size, sequence, _, _ = rung.heap[0]
        rung.seat = (size, sequence)
        insort(heads, (size, sequence, rung.opened, rung))


class Ages:
    """Waiters in the order in which they came, a line for each shape."""

    __slots__ = ("_earliest", "_lines")

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._earliest = inf
        """Nobody here came before then."""

    @property
    def held(self) -> int:
        """How many are kept, those who have gone included."""
        return sum(len(line.waiters) for line in self._lines.values())

    def add(self, waiter: Waiter) -> None:
        """Take a waiter in; it leaves by itself."""
        shape = waiter.request.shape
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = _Line()
        line.add(waiter)
        self._earliest = min(self._earliest, waiter.arrived)

    def oldest(self, before: float, fits: Callable[[Request], bool]) -> Waiter | None:
        """Return the oldest that came before then and `fits`; None when there is none."""
        if before <= self._earliest:
            return None
        found: list[tuple[float, int, Waiter]] = []
        earliest = inf
        for shape, line in list(self._lines.items()):
            waiter = line.first(before)
            if waiter is not None:
                found.append((waiter.arrived, waiter.request.sequence, waiter))
            if line.waiters:
                earliest = min(earliest, line.waiters[0].arrived)
            else:
                del self._lines[shape]
        self._earliest = earliest
        if len(found) > 1:
            found.sort()
        return next((waiter for _, _, waiter in found if fits(waiter.request)), None)

    def leave(self, waiter: Waiter) -> None:
        """Take out the waiter that `oldest` has just returned; it goes on waiting."""
        self._lines[waiter.request.shape].waiters.popleft()


class _Line:
    """Waiters of one shape, the oldest first; who has gone is dropped when it is in front."""

    __slots__ = ("_most", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        self._most = _FEW
        """Past this length those who have gone are dropped."""

    def add(self, waiter: Waiter) -> None:
        line = self.waiters
        if len(line) > self._most:
            self.waiters = line = deque(each for each in line if each.waits)
            self._most = 4 * len(line) + _FEW
        if line and waiter.arrived <= line[-1].arrived and _age(waiter) < _age(line[-1]):
            insort(line, waiter, key=_age)
        else:
            line.append(waiter)

    def first(self, before: float) -> Waiter | None:
        """Return the oldest, if it came before then."""
        line = self.waiters
        while line:
            waiter = line[0]
            if waiter.arrived >= before:
                return None
            if waiter.waits:
                return waiter
            line.popleft()
        return None


def _age(waiter: Waiter) -> tuple[float, int]:
    return waiter.arrived, waiter.request.sequence
