"""A heap that things may leave from the middle, for whatever waits.

What left stays in the heap as a dead entry until it comes to the top, or until the dead outnumber
the living, when the heap is rebuilt: each operation is O(log n) amortised, whoever leaves. Equal
keys keep the order in which they came.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_FEW = 64
"""Dead entries that are never worth a rebuild."""


class Heap(Generic[T]):
    """Items by key, smallest first, each known by an id. Keys are numbers, or tuples of them."""

    __slots__ = ("_entries", "_live", "_serial")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, str, T]] = []
        self._live: dict[str, tuple[int, T]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def held(self) -> int:
        """How many entries are kept, dead ones included."""
        return len(self._entries)

    def __contains__(self, id: str) -> bool:  # noqa: A002 - the word for it
        return id in self._live

    def get(self, id: str) -> T | None:  # noqa: A002 - of a request
        """Return the item of that id; None when it is not there."""
        alive = self._live.get(id)
        return None if alive is None else alive[1]

    def __iter__(self) -> Iterator[T]:
        """Go through the items in no order of importance."""
        return (item for _, item in self._live.values())

    def add(self, key: float | tuple[float, float], id: str, item: T) -> None:  # noqa: A002 - of a request
        """Take an item in; ValueError when its id is already there."""
        if id in self._live:
            raise ValueError(f"{id!r} is already waiting")
        self._serial += 1
        self._live[id] = (self._serial, item)
        heappush(self._entries, (key, self._serial, id, item))

    def top(self) -> tuple[Any, T] | None:
        """Return the smallest key and its item; None when empty."""
        entries, live = self._entries, self._live
        while entries:
            key, serial, id_, item = entries[0]
            alive = live.get(id_)
            if alive is not None and alive[0] == serial:
                return key, item
            heappop(entries)
        return None

    def remove(self, id: str) -> T | None:  # noqa: A002 - of a request
        """Take an item out, wherever it is; None when it is not there."""
        alive = self._live.pop(id, None)
        if alive is None:
            return None
        dead = len(self._entries) - len(self._live)
        if dead > _FEW and dead > len(self._live):
            self._rebuild()
        return alive[1]

    def _rebuild(self) -> None:
        live = self._live
        self._entries = [e for e in self._entries if e[2] in live and live[e[2]][0] == e[1]]
        heapify(self._entries)
