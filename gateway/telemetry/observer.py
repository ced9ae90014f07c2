"""All of the telemetry behind the one seam that the data plane sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .traces import PassOn, Sampler

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome

    from .access_log import AccessLog
    from .labels import LabelSpace
    from .metrics import Metrics
    from .spans import Spans
    from .traces import RequestTrace, Tracing


BATCH = 128
"""Outcomes folded and logged at once (0.7 ms): a busy gateway does not wait for the clock, lest
thousands of them make one long pause."""


class Telemetry:
    """Takes outcomes on the loop; `flush`, ten times a second, does what can wait."""

    def __init__(
        self, metrics: Metrics, log: AccessLog | None, spans: Spans | None, *, sample: float
    ) -> None:
        self.metrics = metrics
        self.spans = spans
        self.tracing: Tracing = PassOn() if spans is None else Sampler(sample)
        self._log = log
        self._waiting = 0
        self.stripped = metrics.stripped
        self.retry_refused = metrics.retry_refused
        self.moved = metrics.moved
        self.transition = metrics.transition

    def settled(self, outcome: Outcome, trace: RequestTrace) -> None:
        """Note how one call ended."""
        self.metrics.settled(outcome)
        if self._log is not None:
            self._log.add(outcome)
        if self.spans is not None:
            self.spans.settled(outcome, trace)
        self._waiting += 1
        if self._waiting >= BATCH:
            self._waiting = 0
            self.metrics.fold()
            if self._log is not None:
                self._log.encode()

    def flush(self) -> None:
        """Fold counts and write lines."""
        self._waiting = 0
        self.metrics.fold()
        if self._log is not None:
            self._log.flush()

    def relabel(self, labels: LabelSpace) -> None:
        """Take a reloaded configuration's names."""
        self.metrics.relabel(labels)
        if self._log is not None:
            self._log.relabel(labels)
        if self.spans is not None:
            self.spans.labels = labels

    def close(self) -> None:
        """Hand over all that is left."""
        self.flush()
        if self.spans is not None:
            self.spans.close()
