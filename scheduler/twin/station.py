"""One endpoint of the simulator: a modelled engine, moved from event to event.

The engine only ever looks ahead to the end of a step, as a real one does: what comes while a step
runs joins a later one. While it just decodes, nobody needs to know what each step did, so such a
stretch is left alone until it ends, or until something comes and the step then under way matters.
That is exact, and several times faster than stepping at each arrival anywhere.

Weakness: where KV blocks run out in such a stretch, its end is told a little late (by what the
preempted sequence's share of the last steps was).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from forebay.scheduler.engine_model import EngineModel

if TYPE_CHECKING:
    from forebay.scheduler.engine_profiles import Profile
    from forebay.scheduler.engine_sequence import Sequence, StepResult


class Station:
    """A modelled engine with a time. `due` is when it next has something to tell; inf when idle."""

    __slots__ = ("_at", "_ended", "due", "model")

    def __init__(self, profile: Profile) -> None:
        self.model = EngineModel(profile)
        self.due = inf
        self._at = 0.0
        """When the last step taken is over."""
        self._ended: StepResult | None = None
        """What that step did, while it is not yet told."""

    def add(self, sequence: Sequence, now: float) -> None:
        """Take a sequence in; the caller calls `go_on` after the last one."""
        if self.due == inf:
            self._at = now
        elif self._ended is None and self._at < now:
            if self.model.busy:
                self._catch_up(now)
            else:  # all of it has just ended, by rounding a little earlier than was foretold
                self._at = now
        self.model.add(sequence)

    def abort(self, sequence: Sequence, now: float) -> None:
        """Drop a sequence; the caller calls `go_on` after."""
        if self.due != inf and self._ended is None and self._at < now:
            self._catch_up(now)
        self.model.abort(sequence)

    def tell(self) -> StepResult:
        """Return what happened by `due`; the caller then adds what comes next, and `go_on`."""
        ended, self._ended = self._ended, None
        if ended is None:
            ended = self.model.step(inf)
            self._at += ended.duration_s
        return ended

    def go_on(self) -> None:
        """Begin the next step, or a stretch of them, if none is under way."""
        if self._ended is not None:
            return
        if not self.model.busy:
            self.due = inf
            return
        quiet = self.model.calm_s()
        if quiet:
            self.due = self._at + quiet
        else:
            self._take(0.0)

    def _catch_up(self, now: float) -> None:
        """Step up to the end of the step that is under way now."""
        while self._ended is None and self._at < now:
            self._take(now - self._at)
            self._drop_if_idle(now)

    def _drop_if_idle(self, now: float) -> None:
        if self._at < now and self._ended is not None and not _of_note(self._ended):
            self._ended = None

    def _take(self, limit_s: float) -> None:
        result = self.model.step(limit_s)
        self._at += result.duration_s
        self._ended, self.due = result, self._at


def _of_note(result: StepResult) -> bool:
    return bool(result.first or result.finished)
