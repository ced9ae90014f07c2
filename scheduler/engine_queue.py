"""The queue of one modelled engine: by priority, where it goes by that, and then by arrival."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from .engine_sequence import Phase, Sequence

_DEAD_FEW = 64


class EngineQueue:
    """Waiting sequences. Aborted ones stay, uncounted, until they are at the head or many."""

    __slots__ = ("_arriving", "_dead", "_heap", "_priority", "head")

    def __init__(self, *, priority: bool) -> None:
        self.head: Sequence | None = None
        """Who goes next."""
        self._heap: list[tuple[int, int, Sequence]] = []
        self._dead = 0
        self._arriving: list[Sequence] = []
        self._priority = priority

    def __len__(self) -> int:
        return len(self._heap) - self._dead + len(self._arriving)

    @property
    def arriving(self) -> bool:
        """Whether there are some that may not be begun yet."""
        return bool(self._arriving)

    def rank(self, sequence: Sequence) -> tuple[int, int]:
        """Return what it is ordered by, the most urgent lowest."""
        return (sequence.priority if self._priority else 0, sequence.number)

    def push(self, sequence: Sequence) -> None:
        """Take one in."""
        sequence.phase = Phase.WAITING
        heappush(self._heap, (*self.rank(sequence), sequence))
        self.head = self._heap[0][2]

    def push_later(self, sequence: Sequence) -> None:
        """Take one in that may not be begun before `arrive`."""
        sequence.phase = Phase.WAITING
        self._arriving.append(sequence)

    def arrive(self) -> None:
        """Let those be begun that were pushed for later."""
        for sequence in self._arriving:
            self.push(sequence)
        self._arriving.clear()

    def pop(self) -> None:
        """Remove the head."""
        heappop(self._heap)
        self._sweep()

    def drop(self, sequence: Sequence) -> None:
        """Forget one that is no longer wanted."""
        sequence.phase = Phase.DONE
        if sequence in self._arriving:
            self._arriving.remove(sequence)
        else:
            self._dead += 1
            self._sweep()

    def _sweep(self) -> None:
        heap = self._heap
        if self._dead > _DEAD_FEW and 2 * self._dead > len(heap):
            heap[:] = [entry for entry in heap if entry[2].phase is Phase.WAITING]
            heapify(heap)
            self._dead = 0
        while heap and heap[0][2].phase is not Phase.WAITING:
            heappop(heap)
            self._dead -= 1
        self.head = heap[0][2] if heap else None
