"""First come, first served: the oldest request that some endpoint has room for.

Requests of one shape wait in one lane, since they can go to the same endpoints: only the head of a
lane can be next. The lanes stand in the order of their heads, so each shape is looked at, and never
each request: O(log n) to come, leave or go, and one look at each lane that cannot move.

When not to use it: where tenants share a pool (one that sends much makes all others wait) or where
short answers wait behind long ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from .heap import Heap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .contracts import Request


class Fcfs:
    """Orders by `sequence`, so a request that comes back keeps its place."""

    name = "fcfs"

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}
        self._heads: list[tuple[float, int, _Lane]] = []
        self._opened = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002 - time decides nothing here
        """Take a request into the queue; ValueError when it waits already."""
        lane = self._lanes.get(request.shape)
        if lane is None:
            lane = self._open(request.shape)
        lane.waiting.add(request.sequence, request.id, request)
        self._size += 1
        if lane.head is None or request.sequence < lane.head:
            self._reseat(lane)

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        lane = self._lanes.get(request.shape)
        if lane is None or lane.waiting.remove(request.id) is None:
            return False
        self._size -= 1
        self._reseat(lane)
        return True

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:  # noqa: ARG002
        """Remove and return the oldest request that `fits`; None when none does."""
        for _, _, lane in self._heads:
            top = lane.waiting.top()
            if top is not None and fits(top[1]):
                self.discard(top[1])
                return top[1]
        return None

    def _open(self, shape: Hashable) -> _Lane:
        self._opened += 1
        lane = self._lanes[shape] = _Lane(shape, self._opened)
        return lane

    def _reseat(self, lane: _Lane) -> None:
        """Move a lane to where its head now belongs; an empty one is closed."""
        top = lane.waiting.top()
        head = None if top is None else top[0]
        if head == lane.head and head is not None:
            return
        if lane.head is not None:
            del self._heads[bisect_left(self._heads, (lane.head, lane.number))]
        lane.head = head
        if head is None:
            del self._lanes[lane.shape]
        else:
            insort(self._heads, (head, lane.number, lane))


class _Lane:
    """The waiting requests of one shape, and where the lane stands among the others."""

    __slots__ = ("head", "number", "shape", "waiting")

    def __init__(self, shape: Hashable, number: int) -> None:
        self.shape = shape
        self.number = number
        self.waiting: Heap[Request] = Heap()
        self.head: float | None = None
