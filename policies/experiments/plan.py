"""What an experiment was set up to do, as plain values, and how its alpha is shared out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .measures import MEASURES
from .tallies import BUCKETS, Cell

if TYPE_CHECKING:
    from collections.abc import Mapping

Promote = Literal["better", "not_worse", "never"]
Sticky = Literal["tenant", "session", "user", "request"]

ROLLBACK_SHARE = 0.8
"""Of alpha, for stopping; the rest is for promoting."""
GUARDRAILS: Mapping[str, float] = {
    name: MEASURES[name].margin
    for name in (
        *("errors", "refused", "left", "ttft", "ttft_p99", "tpot"),
        *("empty", "truncated", "length"),
    )
}
"""Margins of the guardrails that an experiment has unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class Alphas:
    """The chance of error that one test may have: together no more than the experiment's."""

    whole: float
    """Of a guardrail over all cells."""
    cell: float
    """Of a guardrail in one cell."""
    promote: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One experiment. The first of `arms` is the control, the others are candidates."""

    name: str
    arms: tuple[str, ...]
    weights: Mapping[str, float]
    """Shares of the arms, in any unit; of a ramp, how candidates share theirs."""
    stages: tuple[float, ...] = ()
    """What candidates together get, one after the other; empty: `weights` as they are."""
    dwell_s: float = 600.0
    """Least time of a stage."""
    min_requests: int = 500
    """Least requests of each candidate in a stage before the next; stopping needs none."""
    primary: str = "ttft"
    promote: Promote = "better"
    margin: float = 0.05
    """How much worse the primary may be where `promote` is `not_worse`."""
    guardrails: Mapping[str, float] = field(default_factory=lambda: GUARDRAILS)
    max_errors: float = 0.2
    """Share of failed requests that no candidate may have, whatever the control's."""
    alpha: float = 0.05
    classes: tuple[str, ...] = ("",)
    """SLA classes that requests may be of."""

    @property
    def control(self) -> str:
        """The arm that serves already."""
        return self.arms[0]

    @property
    def candidates(self) -> tuple[str, ...]:
        """The arms on trial."""
        return self.arms[1:]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells that there can be."""
        return tuple(
            Cell(sla, bucket) for sla in self.classes for bucket in range(len(BUCKETS) + 1)
        )

    @property
    def alphas(self) -> Alphas:
        """Share alpha out over candidates, stages, guardrails, classes and buckets."""
        runs = len(self.candidates) * max(1, len(self.stages))
        rails = len(self.guardrails) + 1  # the absolute limit on errors is one more
        each = self.alpha * ROLLBACK_SHARE / (runs * rails)
        return Alphas(
            whole=each / 2,
            cell=each / 2 / len(self.cells),
            promote=self.alpha * (1 - ROLLBACK_SHARE) / runs,
        )
