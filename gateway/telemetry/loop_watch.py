"""Measures how long the event loop was held up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from .histogram import Histogram

INTERVAL = 0.05
WINDOW = 30.0


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Forget it."""
        ...


class Clockwork(Protocol):
    """As much of an event loop as is needed here."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call back after `delay` seconds."""
        ...


class LoopWatch:
    """Runs every 50 ms and sees how late it is.

    A pause shorter than that is seen only when it falls on the beat, and any is seen less up to
    50 ms; what holds up streams is far longer. `longest` looks back 30 to 60 s, whoever reads it,
    so that two scrapers do not take each other's maximum away.
    """

    def __init__(
        self,
        loop: Clockwork,
        pauses: Histogram,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._pauses = pauses
        # Not the loop's own time: uvloop's is that of the turn's beginning, in whole milliseconds.
        self._clock = clock
        self._now_max = 0.0
        self._before_max = 0.0
        self._turned = self._last = clock()
        self._timer: Timer | None = None

    @property
    def longest(self) -> float:
        """The longest pause of the last 30 to 60 s."""
        return max(self._now_max, self._before_max)

    def start(self) -> None:
        """Begin to watch."""
        self._turned = self._last = self._clock()
        self._timer = self._loop.call_later(INTERVAL, self._beat)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now = self._clock()
        pause = max(0.0, now - self._last - INTERVAL)
        self._last = now
        self._pauses.observe(pause)
        if now - self._turned >= WINDOW:
            self._before_max, self._now_max, self._turned = self._now_max, 0.0, now
        self._now_max = max(self._now_max, pause)
        self._timer = self._loop.call_later(INTERVAL, self._beat)
