"""Book-keeping of what waits in one pool: who expires next, who is oldest, how many of whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.heap import Heap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.policies.contracts import Request


class Waiting:
    """The waiting requests, by several clocks; to come and to go is O(log waiting)."""

    __slots__ = ("_arrivals", "_limits", "_ranked", "_youngest", "bytes", "counts")

    def __init__(self, *, ranked: bool) -> None:
        self.bytes = 0
        self.counts: dict[tuple[str, str], int] = {}
        """How many wait, by SLA class and tenant."""
        self._limits: Heap[Request] = Heap()
        self._arrivals: dict[str, Heap[Request]] = {}
        self._ranked = ranked
        self._youngest: dict[int, Heap[Request]] = {}
        """By rank of class; kept only where a higher class may displace a lower one."""

    def __len__(self) -> int:
        return len(self._limits)

    def __iter__(self) -> Iterator[Request]:
        """Go through the requests in no order of importance."""
        return iter(self._limits)

    def add(self, request: Request, until: float) -> None:
        """Take a request in; it may wait `until` then."""
        self._limits.add(until, request.id, request)
        arrivals = self._arrivals.get(request.sla)
        if arrivals is None:
            arrivals = self._arrivals[request.sla] = Heap()
        arrivals.add(request.arrived, request.id, request)
        if self._ranked:
            rank = self._youngest.get(request.sla_rank)
            if rank is None:
                rank = self._youngest[request.sla_rank] = Heap()
            rank.add(-request.sequence, request.id, request)
        key = (request.sla, request.tenant)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.bytes += request.body_bytes

    def remove(self, request_id: str) -> Request | None:
        """Take a request out; None when it does not wait."""
        request = self._limits.remove(request_id)
        if request is None:
            return None
        self._arrivals[request.sla].remove(request_id)
        if self._ranked:
            self._youngest[request.sla_rank].remove(request_id)
        key = (request.sla, request.tenant)
        left = self.counts[key] - 1
        if left:
            self.counts[key] = left
        else:
            del self.counts[key]
        self.bytes -= request.body_bytes
        return request

    def soonest(self) -> tuple[float, Request] | None:
        """Return when the first may wait no longer, and which; None when nothing waits."""
        return self._limits.top()

    def oldest(self) -> dict[str, float]:
        """Return when the oldest of each class came, for the classes that wait."""
        tops = {sla: heap.top() for sla, heap in self._arrivals.items()}
        return {sla: top[0] for sla, top in tops.items() if top is not None}

    def of_class(self, sla: str) -> int:
        """Count those of one class."""
        arrivals = self._arrivals.get(sla)
        return 0 if arrivals is None else len(arrivals)

    def ranks_at_least(self, rank: int) -> int:
        """Count those whose class matters as much, or more."""
        return sum(len(heap) for known, heap in self._youngest.items() if known >= rank)

    def displaceable(self, rank: int) -> Request | None:
        """Return the youngest of the lowest class, if it is below `rank`."""
        below = [known for known, heap in self._youngest.items() if known < rank and len(heap)]
        if not below:
            return None
        top = self._youngest[min(below)].top()
        return None if top is None else top[1]
