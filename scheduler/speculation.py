"""Whether an endpoint's speculation pays: its acceptance, and when it is left and tried.

Theory of operation. Readings of the engine's counters come in; their growth over the window gives
the acceptance rate. Below `least` the endpoint is `off`: requests for which drafts were to pay go
to plain ones. With no such traffic nothing more is learnt, so after `rest` it is on `trial`: it
gets its share again, and the first window with enough drafts decides. A trial that fails doubles
the rest. An engine whose counters cannot be read any more is tried likewise, by `wait`.

The rate is also followed slowly, over about a week, so that a drift shows: a head that was trained
on last month's traffic.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf

__all__ = ["Acceptance", "AcceptanceSettings", "Reading", "Stand", "WeeksAverage"]

_WEEK_S = 7 * 86_400.0
_LONGEST_REST = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine says it has come to since it started; or, of engines that only say so, rates.

    drafts: verifying steps; drafted and accepted: guessed tokens. rate, length: the engine's own
    recent acceptance rate and tokens a step, where it keeps no counts.
    """

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    rate: float | None = None
    length: float | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """When speculation is left and tried again."""

    least: float = 0.6
    back: float = 0.65
    window_s: float = 60.0
    rest_s: float = 60.0
    min_drafts: int = 50


class Stand(StrEnum):
    """What is thought of an endpoint's speculation."""

    ON = "on"
    OFF = "off"
    TRIAL = "trial"


class WeeksAverage:
    """A value followed slowly, over about a week."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._when = 0.0

    def follow(self, value: float, now: float) -> None:
        """Take in what the value is now."""
        if self.value is None:
            self.value = value
        else:
            self.value += (value - self.value) * (1 - exp((self._when - now) / _WEEK_S))
        self._when = now


class Acceptance:
    """One endpoint's. `rate` and `length` are None until enough was drafted within the window."""

    def __init__(self, settings: AcceptanceSettings) -> None:
        self.settings = settings
        self.stand = Stand.ON
        self.rate: float | None = None
        self.length: float | None = None
        """Accepted tokens a draft."""
        self.judged: float | None = None
        """The rate that it was last judged by."""
        self.usual = WeeksAverage()
        self._readings: deque[tuple[float, Reading]] = deque()
        self._rest_until = 0.0
        self._rests = 1

    @property
    def pays(self) -> bool:
        """Whether requests may be sent there for its drafts."""
        return self.stand is not Stand.OFF

    @property
    def drift(self) -> float | None:
        """How far the rate lies above its slow average; below it where negative."""
        usual = self.usual.value
        return None if self.rate is None or usual is None else self.rate - usual

    def read(self, reading: Reading, now: float) -> bool:
        """Take in a reading; True when what is thought of it has changed."""
        self._measure(reading, now)
        before = self.stand
        if self.stand is Stand.OFF:
            if now >= self._rest_until:
                self._begin(Stand.TRIAL, reading, now)
        elif self.rate is not None:
            self.usual.follow(self.rate, now)
            self._judge(reading, now)
        return self.stand is not before

    def wait(self, now: float) -> bool:
        """Take in that nothing could be read; True when what is thought of it has changed."""
        if self._readings and now - self._readings[-1][0] > self.settings.window_s:
            self._readings.clear()
            self.rate = self.length = None
        if self.stand is not Stand.OFF or now < self._rest_until:
            return False
        self.stand = Stand.TRIAL
        return True

    def _measure(self, reading: Reading, now: float) -> None:
        readings = self._readings
        if readings and _fewer(reading, readings[-1][1]):
            readings.clear()  # the engine has started anew, or one of its ranks
        readings.append((now, reading))
        while len(readings) > 2 and readings[1][0] <= now - self.settings.window_s:
            readings.popleft()
        since, first = readings[0]
        if reading.rate is not None:
            fresh = reading.rate != first.rate or now - since >= self.settings.window_s
            if self.stand is Stand.TRIAL and not fresh:
                return  # what it was before the trial: nothing has been drafted since
            self.rate, self.length = min(1.0, max(0.0, reading.rate)), reading.length
            return
        drafts, drafted = reading.drafts - first.drafts, reading.drafted - first.drafted
        accepted = reading.accepted - first.accepted
        # Sums of many ranks may be no numbers; more accepted than guessed is no count of either.
        if drafts < self.settings.min_drafts or not 0 <= accepted <= drafted < inf or not drafted:
            self.rate = self.length = None
            return
        self.rate, self.length = accepted / drafted, accepted / drafts

    def _judge(self, reading: Reading, now: float) -> None:
        assert self.rate is not None
        self.judged = self.rate
        if self.stand is Stand.ON:
            if self.rate < self.settings.least:
                self._leave(reading, now, rests=1)
        elif self.rate < self.settings.back:
            self._leave(reading, now, rests=min(self._rests * 2, _LONGEST_REST))
        else:
            self._rests = 1
            self.stand = Stand.ON

    def _leave(self, reading: Reading, now: float, *, rests: int) -> None:
        self._rests = rests
        self._rest_until = now + self.settings.rest_s * rests
        self._begin(Stand.OFF, reading, now)

    def _begin(self, stand: Stand, reading: Reading, now: float) -> None:
        self.stand = stand
        self.rate = self.length = None
        self._readings.clear()
        self._readings.append((now, reading))


def _fewer(now: Reading, before: Reading) -> bool:
    """Tell whether one of the counters has gone back."""
    return (
        now.drafts < before.drafts or now.drafted < before.drafted or now.accepted < before.accepted
    )
