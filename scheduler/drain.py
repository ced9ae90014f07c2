"""How fast a queue drains while something waits in it.

Only the time during which requests wait is counted: an idle pool starts few, which says nothing of
how many it could. The pace is a moving mean over the last placements out of the queue.
"""

from __future__ import annotations

from math import inf

_SMOOTH = 1 / 64
_FEWEST = 32
"""Placements out of the queue before anything is foretold."""


class Drain:
    """The mean time between placements out of one queue."""

    __slots__ = ("_gap", "_last", "_seen")

    def __init__(self) -> None:
        self._last = 0.0
        self._gap = 0.0
        self._seen = 0

    def began(self, now: float) -> None:
        """Take in that something waits again, after nothing did."""
        self._last = now

    def placed(self, now: float) -> None:
        """Take in that a request was placed out of the queue."""
        gap, self._last = max(0.0, now - self._last), now
        self._seen += 1
        self._gap += (gap - self._gap) * max(_SMOOTH, 1.0 / self._seen)

    def wait(self, ahead: float, now: float) -> float:
        """Return in how many seconds so many will have been placed; 0 while that is not known."""
        if self._seen < _FEWEST:
            return 0.0
        # A pool that has stopped placing is slower than it was.
        gap = max(self._gap, (now - self._last) / _FEWEST)
        return ahead * gap if gap else 0.0

    @property
    def rate(self) -> float:
        """Placements a second; infinite while none has taken time."""
        return 1.0 / self._gap if self._gap else inf
