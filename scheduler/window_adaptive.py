"""Finds how many requests an endpoint may have at once, when nobody says: by its own times.

Theory of operation. More requests at once bring more tokens a second until the engine is full; from
then on they only make each other slower. So the window grows while what is measured stays under the
targets, and shrinks when it does not: additive increase, multiplicative decrease.

One *round* is as many ended requests as the window is wide, so that what is measured was sent
under that window. At a round's end the share of requests that missed a target decides. TTFT counts
from the placement, not from the receipt: waiting in our own queue says nothing of the engine.

    missed more than `tolerated`   window * `backoff`, and the next round is let pass
    full, and all well             window + 1, doubling until the first miss
    not full                       nothing is learnt

When not to use it: for an endpoint that others use too, whose load it would take for its own; and
with targets that the engine cannot keep with one request, where it stays at the least window.
"""

from __future__ import annotations

from dataclasses import dataclass

_FEWEST = 8
"""Ended requests that say anything."""


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Targets and bounds."""

    ttft: float = 0.5
    """Seconds from placement to first token."""
    tpot: float = 0.05
    """Seconds a token after the first."""
    least: int = 1
    most: int = 1024
    start: int = 8
    tolerated: float = 0.1
    """Share of a round that may miss a target."""
    backoff: float = 0.8


class AdaptiveWindow:
    """One endpoint's window; `limit` is how many requests it may have now."""

    def __init__(self, settings: WindowSettings) -> None:
        self.limit = min(settings.most, max(settings.least, settings.start))
        self.settings = settings
        self._doubling = True
        self._ended = 0
        self._missed = 0
        self._full = False
        self._rest = 0
        """Ended requests of the round after a decrease, which began under the old window."""

    def placed(self, in_flight: int) -> None:
        """Take in that a request was placed, and how many are in flight with it."""
        if in_flight >= self.limit:
            self._full = True

    def ended(self, ttft: float | None, tpot: float | None) -> bool:
        """Take in the times of a request that ended; True when the window has changed.

        None is a time that was not measured. A request with neither says nothing.
        """
        if ttft is None and tpot is None:
            return False
        if self._rest:
            self._rest -= 1
            return False
        settings = self.settings
        self._ended += 1
        late = ttft is not None and ttft > settings.ttft
        self._missed += late or (tpot is not None and tpot > settings.tpot)
        if self._ended < max(_FEWEST, self.limit):
            return False
        return self._close()

    def _close(self) -> bool:
        """End a round."""
        settings, before = self.settings, self.limit
        if self._missed > settings.tolerated * self._ended:
            self._doubling = False
            self.limit = max(settings.least, int(before * settings.backoff))
            self._rest = before
        elif self._full:
            step = before if self._doubling else 1
            self.limit = min(settings.most, before + step)
        self._ended = self._missed = 0
        self._full = False
        return self.limit != before
