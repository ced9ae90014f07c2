"""Waiting requests in lanes: what the orderings are made of.

Requests that can go to the same endpoints and that stand in a fixed order among themselves wait
in one lane, so only the head of a lane can be next. The lanes stand in the order of their heads'
ranks: each lane is looked at, and never each request. To come, leave or go is O(log n), and a look
for who is next asks once for each shape that cannot move.

A rank is a tuple, smallest first, with the sequence in its end so that no two are equal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from .heap import Heap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from .contracts import Request

Rank = tuple[float, float]
"""What decides, then the sequence."""


class Lane:
    """Requests in a fixed order, and where the lane stands among the others."""

    __slots__ = ("key", "number", "rank", "shape", "waiting")

    def __init__(self, key: Hashable, shape: Hashable, number: int) -> None:
        self.key = key
        self.shape = shape
        self.number = number
        self.waiting: Heap[Request] = Heap()
        self.rank: Rank | None = None
        """Of its head, as it was last read."""


class Lanes:
    """Lanes by key, in the order of their heads' ranks."""

    __slots__ = ("_heads", "_lane_of", "_lanes", "_opened", "_rank")

    def __init__(self, rank: Callable[[Request, Rank], Rank] | None = None) -> None:
        self._lanes: dict[Hashable, Lane] = {}
        self._heads: list[tuple[Rank, int, Lane]] = []
        self._lane_of: dict[str, Lane] = {}
        self._rank = rank
        self._opened = 0

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._lane_of

    def __iter__(self) -> Iterator[Lane]:
        """Go through the lanes in the order of their heads."""
        return (lane for _, _, lane in self._heads)

    def add(self, request: Request, place: Rank, key: Hashable = None) -> None:
        """Take a request in at its place in the lane `key`; ValueError when it waits already.

        Without a key there is one lane a shape; with one, all of a lane must have one shape.
        """
        shape = request.shape
        if key is None:
            key = shape
        if request.id in self._lane_of:
            raise ValueError(f"{request.id!r} is already waiting")
        lane = self._lanes.get(key)
        if lane is None:
            self._opened += 1
            lane = self._lanes[key] = Lane(key, shape, self._opened)
        lane.waiting.add(place, request.id, request)
        self._lane_of[request.id] = lane
        top = lane.waiting.top()
        if top is not None and top[1] is request:
            self._reseat(lane)

    def discard(self, request: Request) -> bool:
        """Forget a request; False when it was not waiting."""
        lane = self._lane_of.get(request.id)
        if lane is None:
            return False
        held = lane.waiting.get(request.id)
        if held is not request and lane.shape != request.shape:
            return False  # another try of it waits, which may go elsewhere
        del self._lane_of[request.id]
        lane.waiting.remove(request.id)
        self._reseat(lane)
        return True

    def first(self, fits: Callable[[Request], bool]) -> Request | None:
        """Return the first that `fits`, which is asked once a shape; None when none does."""
        refused: set[Hashable] = set()
        for _, _, lane in self._heads:
            if lane.shape in refused:
                continue
            top = lane.waiting.top()
            if top is not None and fits(top[1]):
                return top[1]
            refused.add(lane.shape)
        return None

    def take(self, fits: Callable[[Request], bool]) -> Request | None:
        """Remove and return the first request that `fits`."""
        request = self.first(fits)
        if request is not None:
            self.discard(request)
        return request

    def reread(self) -> int:
        """Read the rank of each head anew; return how many lanes stand elsewhere than before."""
        before = [lane for _, _, lane in self._heads]
        for lane in before:
            top = lane.waiting.top()
            assert top is not None
            lane.rank = self._rank_of(top[1], top[0])
        self._heads = sorted(
            (lane.rank, lane.number, lane) for lane in before if lane.rank is not None
        )
        return sum(a is not b[2] for a, b in zip(before, self._heads, strict=True))

    def _rank_of(self, request: Request, place: Rank) -> Rank:
        return place if self._rank is None else self._rank(request, place)

    def _reseat(self, lane: Lane) -> None:
        """Move a lane to where its head now belongs; an empty one is closed."""
        top = lane.waiting.top()
        rank = None if top is None else self._rank_of(top[1], top[0])
        if rank == lane.rank and rank is not None:
            return
        if lane.rank is not None:
            del self._heads[bisect_left(self._heads, (lane.rank, lane.number))]  # type: ignore[arg-type] - the lane itself decides nothing
        lane.rank = rank
        if rank is None:
            del self._lanes[lane.key]
        else:
            insort(self._heads, (rank, lane.number, lane))
