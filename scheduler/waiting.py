"""Book-keeping of what waits in one pool: who expires next, who is oldest, how many of whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.heap import Heap

from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from forebay.policies.contracts import Request


class Waiting:
    """The waiting requests, by several clocks; to come and to go is O(log waiting)."""

    __slots__ = (
        "_arrivals",
        "_bytes_of",
        "_classes",
        "_limits",
        "_ranked",
        "_shapes",
        "_youngest",
        "bytes",
        "counts",
        "size",
    )

    def __init__(self, *, ranked: bool) -> None:
        self.bytes = 0
        self.size = 0
        """How many wait; a plain number, since it is asked several times an event."""
        self.counts: dict[tuple[str, str], int] = {}
        """How many wait, by SLA class and tenant."""
        self._classes: dict[str, int] = {}
        self._shapes: dict[Hashable, int] = {}
        self._limits: Heap[Request] = Heap()
        self._arrivals: dict[str, Timeline] = {}
        self._ranked = ranked
        self._youngest: dict[int, Heap[Request]] | None = None
        """By rank of class; kept from when a second class's request is seen."""
        self._bytes_of: dict[int, int] = {}
        """By rank, likewise."""

    def __len__(self) -> int:
        return self.size

    def get(self, request_id: str) -> Request | None:
        """Return the waiting request of that id; None when there is none."""
        return self._limits.get(request_id)

    def is_waiting(self, request: Request) -> bool:
        """Tell whether this very request waits, and not another try of it."""
        return self._limits.get(request.id) is request

    def __iter__(self) -> Iterator[Request]:
        """Go through the requests in no order of importance."""
        return iter(self._limits)

    def add(self, request: Request, until: float) -> None:
        """Take a request in; it may wait `until` then."""
        self._limits.add(until, request.id, request)
        self.size += 1
        sla = request.sla
        arrivals = self._arrivals.get(sla)
        if arrivals is None:
            arrivals = self._arrivals[sla] = Timeline(self.is_waiting)
        arrivals.add(request)
        if self._youngest is not None:
            self._rank(self._youngest, request)
        elif self._ranked and request.sla_rank:
            self._index()
        key = (sla, request.tenant)
        self.counts[key] = self.counts.get(key, 0) + 1
        self._classes[sla] = self._classes.get(sla, 0) + 1
        shape = request.shape
        self._shapes[shape] = self._shapes.get(shape, 0) + 1
        self.bytes += request.body_bytes

    def remove(self, request_id: str) -> Request | None:
        """Take a request out; None when it does not wait."""
        request = self._limits.remove(request_id)
        if request is None:
            return None
        self.size -= 1
        if self._youngest is not None:
            self._youngest[request.sla_rank].remove(request_id)
            self._bytes_of[request.sla_rank] -= request.body_bytes
        key = (request.sla, request.tenant)
        left = self.counts[key] - 1
        if left:
            self.counts[key] = left
        else:
            del self.counts[key]
        self._classes[request.sla] -= 1
        shape = request.shape
        left = self._shapes[shape] - 1
        if left:
            self._shapes[shape] = left
        else:
            del self._shapes[shape]
        self.bytes -= request.body_bytes
        return request

    def _index(self) -> dict[int, Heap[Request]]:
        """Begin to keep who is youngest of each rank."""
        youngest: dict[int, Heap[Request]] = {}
        self._youngest = youngest
        for each in self._limits:
            self._rank(youngest, each)
        return youngest

    def _rank(self, youngest: dict[int, Heap[Request]], request: Request) -> None:
        rank = request.sla_rank
        heap = youngest.get(rank)
        if heap is None:
            heap = youngest[rank] = Heap()
            self._bytes_of[rank] = 0
        heap.add(-request.sequence, request.id, request)
        self._bytes_of[rank] += request.body_bytes

    def soonest(self) -> tuple[float, Request] | None:
        """Return when the first may wait no longer, and which; None when nothing waits."""
        return self._limits.top()

    def oldest(self) -> dict[str, float]:
        """Return when the oldest of each class came, for the classes that wait."""
        tops = {sla: arrivals.first() for sla, arrivals in self._arrivals.items()}
        return {sla: top.arrived for sla, top in tops.items() if top is not None}

    def of_class(self, sla: str) -> int:
        """Count those of one class."""
        return self._classes.get(sla, 0)

    def of_shape(self, shape: Hashable) -> int:
        """Count those that can go to the same endpoints."""
        return self._shapes.get(shape, 0)

    def of_tenant(self, tenant: str) -> int:
        """Count those of one tenant; O(classes)."""
        counts = self.counts
        return sum(counts.get((sla, tenant), 0) for sla in self._classes)

    def any_of_rank(self, rank: int) -> bool:
        """Tell whether one waits whose class matters as much, or more."""
        if self._youngest is None:
            return rank <= 0 and self.size > 0
        return any(known >= rank and len(heap) for known, heap in self._youngest.items())

    def bytes_below(self, rank: int) -> int:
        """Return how large those are whose class matters less; after `displaceable`."""
        return sum(size for known, size in self._bytes_of.items() if known < rank)

    def displaceable(self, rank: int) -> Request | None:
        """Return the youngest of the lowest class, if it is below `rank`."""
        if not self._ranked or rank <= 0:
            return None
        youngest = self._index() if self._youngest is None else self._youngest
        below = [known for known, heap in youngest.items() if known < rank and len(heap)]
        if not below:
            return None
        top = youngest[min(below)].top()
        return None if top is None else top[1]
