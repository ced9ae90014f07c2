"""Requests in the order in which they came: to come is an append, and to leave costs nothing.

Whoever left is dropped when it comes to the front, so the owner says who is still alive. Those that
come back late (a retry keeps its time of arrival) are put where they belong.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Request

_FEW = 128
"""Entries that are never worth a rebuild."""
_ARRIVED = attrgetter("arrived")


class Timeline:
    """One line of requests by arrival; `alive` tells who still stands in it."""

    __slots__ = ("_alive", "_line", "_most")

    def __init__(self, alive: Callable[[Request], bool]) -> None:
        self._alive = alive
        self._line: deque[Request] = deque()
        self._most = _FEW
        """Past this length the dead are dropped."""

    def add(self, request: Request) -> None:
        """Take a request in."""
        line = self._line
        if len(line) > self._most:
            self._line = line = deque(r for r in line if self._alive(r))
            self._most = 4 * len(line) + _FEW
        if line and request.arrived < line[-1].arrived:
            insort(line, request, key=_ARRIVED)
        else:
            line.append(request)

    def first(self) -> Request | None:
        """Return the oldest that is alive; None when none is."""
        line, alive = self._line, self._alive
        while line:
            if alive(line[0]):
                return line[0]
            line.popleft()
        return None

    def pop(self) -> None:
        """Drop the oldest, after `first`."""
        self._line.popleft()
