"""Counting events over the last seconds, at a comparison and an addition each."""

from __future__ import annotations

from collections import deque
from math import inf

_STEPS = 10


class SlidingCount:
    """How many events there were in the last `window_s` seconds, to a tenth of the window.

    It never looks further back than the window, and may see up to a tenth less.
    """

    __slots__ = ("_current", "_past", "_since", "_step", "_until", "_width")

    def __init__(self, window_s: float) -> None:
        self._width = window_s / _STEPS
        self._past: deque[int] = deque(maxlen=_STEPS - 1)
        self._current = 0
        self._step = 0
        self._until = -inf
        self._since = inf

    def add(self, now: float) -> None:
        """Count one event."""
        if now >= self._until:
            self._turn(now)
        self._current += 1

    def total(self, now: float) -> int:
        """Return the events of the window that ends now."""
        if now >= self._until:
            self._turn(now)
        return sum(self._past) + self._current

    def rate(self, now: float) -> float:
        """Return events a second over what the window has seen, one second at least."""
        total = self.total(now)
        oldest = max(self._since, (self._step - _STEPS + 1) * self._width)
        return total / max(1.0, now - oldest)

    def _turn(self, now: float) -> None:
        """Start the step that `now` is in; steps in which nothing happened count zero."""
        self._since = min(self._since, now)
        step = int(now / self._width)
        for _ in range(min(step - self._step, _STEPS)):
            self._past.append(self._current)
            self._current = 0
        self._step = step
        self._until = (step + 1) * self._width
