"""Waiting requests in lanes: what the orderings are made of.

Requests that can go to the same endpoints and that stand in a fixed order among themselves wait
in one lane, so only the head of a lane can be next. The lanes stand in the order of their heads'
ranks: each lane is looked at, and never each request. To come, leave or go is O(log n), and a look
for who is next asks once for each shape that cannot move.

A rank is a tuple, smallest first, with the sequence in its end so that no two are equal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from .contracts import Request

Rank = tuple[float, float]
"""What decides, then the sequence."""
_FEW = 64
"""Dead entries that are never worth a rebuild."""


class Lane:
    """Requests in a fixed order, and where the lane stands among the others.

    The head of `heap` is alive whenever the lane is not at work; others that left stay in it as
    dead entries until they come to the top, or outnumber the living.
    """

    __slots__ = ("dead", "heap", "key", "number", "rank", "shape")

    def __init__(self, key: Hashable, shape: Hashable, number: int) -> None:
        self.key = key
        self.shape = shape
        self.number = number
        self.heap: list[_Entry] = []
        self.dead = 0
        self.rank: Rank | None = None
        """Of its head, as it was last read."""

    def __len__(self) -> int:
        return len(self.heap) - self.dead

    @property
    def head(self) -> Request:
        """Whoever is first in it."""
        return self.heap[0][2]

    @property
    def place(self) -> Rank:
        """Where the head was put."""
        return self.heap[0][0]


_Entry = tuple[Rank, int, "Request", Lane]


class Lanes:
    """Lanes by key, in the order of their heads' ranks."""

    __slots__ = ("_entries", "_heads", "_lanes", "_opened", "_rank", "_serial")

    def __init__(self, rank: Callable[[Request, Rank], Rank] | None = None) -> None:
        self._lanes: dict[Hashable, Lane] = {}
        self._heads: list[tuple[Rank, int, Lane]] = []
        self._entries: dict[str, _Entry] = {}
        self._rank = rank
        self._opened = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[Lane]:
        """Go through the lanes in the order of their heads."""
        return (lane for _, _, lane in self._heads)

    def add(self, request: Request, place: Rank, key: Hashable = None) -> None:
        """Take a request in at its place in the lane `key`; ValueError when it waits already.

        Without a key there is one lane a shape; with one, all of a lane must have one shape.
        """
        entries, request_id = self._entries, request.id
        if request_id in entries:
            raise ValueError(f"{request_id!r} is already waiting")
        if key is None:
            key = request.shape
        lane = self._lanes.get(key)
        if lane is None:
            self._opened += 1
            lane = self._lanes[key] = Lane(key, request.shape, self._opened)
        self._serial += 1
        entries[request_id] = entry = (place, self._serial, request, lane)
        heap = lane.heap
        heappush(heap, entry)
        if heap[0][1] == self._serial:
            self._reseat(lane)

    def discard(self, request: Request) -> bool:
        """Forget a request; False when it was not waiting."""
        entries = self._entries
        entry = entries.get(request.id)
        if entry is None:
            return False
        lane = entry[3]
        if entry[2] is not request and lane.shape != request.shape:
            return False  # another try of it waits, which may go elsewhere
        del entries[request.id]
        heap = lane.heap
        if heap[0][1] == entry[1]:
            heappop(heap)
            while heap and not self._is_alive(heap[0]):
                heappop(heap)
                lane.dead -= 1
            self._reseat(lane)
            return True
        lane.dead += 1
        if lane.dead > _FEW and 2 * lane.dead > len(heap):
            lane.heap = [each for each in heap if self._is_alive(each)]
            heapify(lane.heap)
            lane.dead = 0
        return True

    def _is_alive(self, entry: _Entry) -> bool:
        # By number: one tuple may be two objects where this is compiled.
        known = self._entries.get(entry[2].id)
        return known is not None and known[1] == entry[1]

    @property
    def least(self) -> float:
        """What decides first of the first of all; infinite when nothing waits."""
        return self._heads[0][0][0] if self._heads else inf

    def first(self, fits: Callable[[Request], bool]) -> Request | None:
        """Return the first that `fits`, which is asked once a shape; None when none does."""
        refused: set[Hashable] | None = None
        for _, _, lane in self._heads:
            if refused is not None and lane.shape in refused:
                continue
            request = lane.heap[0][2]
            if fits(request):
                return request
            if refused is None:
                refused = set()
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
            lane.rank = self._rank_of(lane)
        self._heads = sorted(
            (lane.rank, lane.number, lane) for lane in before if lane.rank is not None
        )
        return sum(a is not b[2] for a, b in zip(before, self._heads, strict=True))

    def _rank_of(self, lane: Lane) -> Rank:
        place, _, request, _ = lane.heap[0]
        return place if self._rank is None else self._rank(request, place)

    def _reseat(self, lane: Lane) -> None:
        """Move a lane to where its head now belongs; an empty one is closed."""
        rank = self._rank_of(lane) if lane.heap else None
        if rank == lane.rank and rank is not None:
            return
        heads = self._heads
        if lane.rank is not None:
            del heads[bisect_left(heads, (lane.rank, lane.number))]  # type: ignore[arg-type]  # the lane itself decides nothing
        lane.rank = rank
        if rank is None:
            del self._lanes[lane.key]
        else:
            insort(heads, (rank, lane.number, lane))
