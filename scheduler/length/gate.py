"""Whether predictions are to be believed: judged on outcomes, and given up while they are bad.

Two ways to lose trust. Predictions are no good: over the last answers they hit the right bucket too
seldom, or their order has little to do with the true one, by more than chance. Or the world has
changed: a model's residuals are no longer distributed as they were when trust began. A lasting
shift shows first in their cumulative sum (Page's test), a change of shape in Kolmogorov-Smirnov
and PSI together. What they were is learnt from more answers as more come, but for the last few
hundred, among which a change may lie. Trust comes back by itself, once a fresh window is good again
and the correction has caught up.

A window must be worse than its bar by more than chance explains (three standard errors of the
share, two of tau), so what is just good enough is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .scores import buckets_of, ks, psi, tau_b

_ERRORS = 3.0
SLACK = 0.125
FAR = 1.0
"""Standard deviations that one answer counts as at most: residuals have long tails, and what moves
is their middle."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How a gate judges."""

    accuracy: float = 0.6
    """Share of answers in the predicted bucket, as it should be. Not .7: prompts alone give .66 to
    .9 by model, so a higher bar is crossed by chance again and again."""
    tau: float = 0.1
    """Kendall's tau-b between predicted and true lengths, likewise."""
    window: int = 300
    every: int = 25
    fewest: int = 150
    """Answers without which nothing is judged."""
    reference: int = 400
    """Residuals of a model that later ones are held against, at first."""
    most: int = 2000
    """So many are held against later on."""
    lag: int = 300
    """The last ones, which are not among them yet."""
    recent: int = 200
    p: float = 1e-8
    """Of the Kolmogorov-Smirnov test; thousands of windows are looked at."""
    psi: float = 0.25
    sum: float = 29.0
    """Cumulative sum of residuals, in standard deviations past `SLACK` each, that is no chance: of
    2,680 times 20,000 answers that did not change (227 models of alpaca_eval), four passed it."""


class Change(NamedTuple):
    """How a model's last residuals differ from those that trust began with."""

    model: str
    answers: int
    """Of those that trust began with."""
    sum: float
    """The larger of both cumulative sums; at `GateSettings.sum` trust is lost."""
    psi: float | None
    ks: float | None
    """Distances of the last answers looked at; None before there were enough."""


@dataclass(slots=True)
class _Drift:
    """One model's residuals: those that trust began with, and the last."""

    settings: GateSettings
    reference: list[float] = field(default_factory=list[float])
    waiting: deque[float] = field(default_factory=deque[float])
    recent: deque[float] = field(default_factory=deque[float])
    seen: int = 0
    mean: float = 0.0
    spread: float = 1.0
    middle: float = 0.0
    """The mean of residuals of which none counts as more than `FAR`."""
    up: float = 0.0
    down: float = 0.0
    psi: float | None = None
    ks: float | None = None

    def add(self, residual: float) -> bool:
        """Take one in; True when the last are not distributed as the first."""
        own = self.settings
        if len(self.reference) < own.reference:
            self._refer(residual)
            return False
        if self._summed(residual):
            return True
        self._wait(residual)
        self.recent.append(residual)
        if len(self.recent) > own.recent:
            self.recent.popleft()
        self.seen += 1
        if len(self.recent) < own.recent or self.seen % own.every:
            return False
        before, now = np.array(self.reference), np.array(self.recent)
        self.ks, p = ks(before, now)
        self.psi = psi(before, now)
        return p < own.p and self.psi > own.psi

    def _wait(self, residual: float) -> None:
        """Hold later residuals against this one too, once it is old enough."""
        if len(self.reference) >= self.settings.most:
            return
        self.waiting.append(residual)
        if len(self.waiting) > self.settings.lag:
            self._refer(self.waiting.popleft())

    def _refer(self, residual: float) -> None:
        self.reference.append(residual)
        size, own = len(self.reference), self.settings
        if size == own.reference or (size > own.reference and size % own.every == 0):
            before = np.array(self.reference)
            self.mean, self.spread = float(before.mean()), float(before.std()) or 1.0
            near = np.clip((before - self.mean) / self.spread, -FAR, FAR)
            self.middle = float(near.mean())

    def _summed(self, residual: float) -> bool:
        """Sum what lies past the slack on either side (Page's test)."""
        off = min(FAR, max(-FAR, (residual - self.mean) / self.spread)) - self.middle
        self.up = max(0.0, self.up + off - SLACK)
        self.down = max(0.0, self.down - off - SLACK)
        return max(self.up, self.down) > self.settings.sum


class Gate:
    """Open while predictions are believed; see the module."""

    def __init__(self, settings: GateSettings | None = None) -> None:
        self.settings = settings or GateSettings()
        self.open = True
        self.reason = ""
        """Why it is closed; empty while it is open."""
        self.closed_times = 0
        self.accuracy: float | None = None
        self.tau: float | None = None
        """Of the last window looked at; None before the first."""
        self.outcomes = 0
        self._said: deque[float] = deque(maxlen=self.settings.window)
        self._true: deque[float] = deque(maxlen=self.settings.window)
        self._drifts: dict[str, _Drift] = {}

    def add(self, model: str, *, said: float, true: float, raw: float) -> bool:
        """Take in an answer: log lengths predicted, true, and predicted before correction.

        Return True when trust was lost or came back.
        """
        self.outcomes += 1
        self._said.append(said)
        self._true.append(true)
        drift = self._drifts.get(model)
        if drift is None:
            drift = self._drifts[model] = _Drift(self.settings)
        if drift.add(true - raw):
            self._drifts[model] = _Drift(self.settings)
            return self._close(f"answers of {model} are no longer as long as they were")
        if len(self._said) < self.settings.fewest or self.outcomes % self.settings.every:
            return False
        return self._judge()

    @property
    def changes(self) -> list[Change]:
        """How each model's answers have changed, by its name."""
        return [
            Change(name, len(own.reference), max(own.up, own.down), own.psi, own.ks)
            for name, own in sorted(self._drifts.items())
        ]

    def restart(self) -> None:
        """Forget what residuals were like: somebody else predicts from now on."""
        self._drifts.clear()

    def _judge(self) -> bool:
        own, size = self.settings, len(self._said)
        said, true = np.array(self._said), np.array(self._true)
        hits = buckets_of(np.expm1(said)) == buckets_of(np.rint(np.expm1(true)))
        self.accuracy, self.tau = float(hits.mean()), tau_b(true, said)
        spread = (own.accuracy * (1 - own.accuracy) / size) ** 0.5
        tau_spread = (2 * (2 * size + 5) / (9 * size * (size - 1))) ** 0.5
        # To come back takes more than to stay, and a whole window.
        less, less_tau = (_ERRORS, 2.0) if self.open else (1.0, 0.0)
        bad_tau = not np.isnan(self.tau) and self.tau < own.tau - less_tau * tau_spread
        if self.accuracy < own.accuracy - less * spread:
            return self._close(f"only {self.accuracy:.0%} of answers were in their bucket")
        if bad_tau:
            return self._close(f"the order of predictions is off: tau {self.tau:.2f}")
        if self.open or size < own.window:
            return False
        self.open, self.reason = True, ""
        return True

    def _close(self, reason: str) -> bool:
        was = self.open
        self.open, self.reason = False, reason
        if was:
            self.closed_times += 1
            self._said.clear()
            self._true.clear()
        return was
