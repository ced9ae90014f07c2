"""How fast a queue drains while something waits in it.

Only time during which requests wait is counted: an idle pool starts few, which says nothing of how
many it could. Nor is the time until the first of a rush starts: a cold engine may take long for it.
Both counts, of placements and of seconds, fade with the seconds counted, so that a pause of an
engine makes the pace a little slower and not what it is.
"""

from __future__ import annotations

from math import exp

_FADES_S = 30.0
_KEPT = 64.0
"""Placements that are not faded, however long ago they were: a slow pool has no more of them."""
_FEWEST = 32.0
"""Placements out of the queue before anything is foretold."""


class Drain:
    """The mean time between placements out of one queue."""

    __slots__ = ("_last", "_placed", "_seconds")

    def __init__(self) -> None:
        self._last: float | None = None
        self._placed = 0.0
        self._seconds = 0.0

    def began(self) -> None:
        """Take in that something waits again, after nothing did."""
        self._last = None

    def placed(self, now: float) -> None:
        """Take in that a request was placed out of the queue."""
        last, self._last = self._last, now
        if last is None:
            return
        gap = max(0.0, now - last)
        if gap and self._placed > _KEPT:
            fade = exp(-gap / _FADES_S)
            self._placed *= fade
            self._seconds *= fade
        self._placed += 1.0
        self._seconds += gap

    def wait(self, ahead: float, now: float) -> float:
        """Return in how many seconds so many will have been placed; 0 while that is not known."""
        if self._placed < _FEWEST:
            return 0.0
        gap = self._seconds / self._placed
        if self._last is not None:  # the one to come counts when it is late
            gap = max(gap, (self._seconds + now - self._last) / (self._placed + 1.0))
        return ahead * gap
