"""How fast a queue drains while something waits in it.

Only time during which requests wait is counted: an idle pool starts few, which says nothing of how
many it could. Nor is the time until the first of a rush starts: a cold engine may take long for it.
Of what was counted the last half minute or more is remembered, so that a pause of an engine makes
the pace a little slower and not what it is.
"""

from __future__ import annotations

_REMEMBERED_S = 60.0
"""Past it both counts are halved."""
_KEPT = 128.0
"""Placements that are not forgotten, however long ago: a slow pool has no more of them."""
_FEWEST = 32.0
"""Placements out of the queue before anything is foretold."""


class Drain:
    """The mean time between placements out of one queue."""

    __slots__ = ("_last", "_placed", "_seconds", "gap")

    def __init__(self) -> None:
        self.gap = 0.0
        """Seconds a placement; 0 while that is not known."""
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
        self._placed += 1.0
        self._seconds += max(0.0, now - last)
        if self._seconds > _REMEMBERED_S and self._placed > _KEPT:
            self._seconds /= 2
            self._placed /= 2
        if self._placed >= _FEWEST:
            self.gap = self._seconds / self._placed

    def wait(self, ahead: float, now: float) -> float:
        """Return in how many seconds so many will have been placed; 0 while that is not known."""
        gap = self.gap
        if gap and self._last is not None:  # the one to come counts when it is late
            gap = max(gap, (self._seconds + now - self._last) / (self._placed + 1.0))
        return ahead * gap
