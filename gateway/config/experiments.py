"""A/B tests between endpoints or pools: the sections `experiments[]` is made of."""

from __future__ import annotations

from math import inf
from typing import Annotated, Literal, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator

from forebay.policies.experiments.measures import MEASURES

from .base import Count, Duration, ModelName, Name, Section, Share, checked
from .suggest import did_you_mean
from .units import Substituted, parse_share, shown

_PRIMARIES = Literal[
    "ttft", "ttft_p50", "ttft_p99", "tpot", "tpot_p50", "tpot_p99", "e2e", "e2e_p50", "e2e_p99",
    "errors", "goodput",
]  # fmt: skip


def _arm(value: object) -> object:
    """Take a list of endpoints for an arm of them."""
    if not isinstance(value, list | tuple):
        return value
    return {"endpoints": cast("list[object]", value)}


class Arm(Section):
    """Where an arm's requests go: a list of endpoints, or `{pool: NAME}`."""

    endpoints: tuple[Name, ...] = Field(default=(), description="endpoints of the pool")
    pool: Name | None = Field(default=None, description="another pool, as a whole")
    hourly: float = Field(
        default=0.0, ge=0, description="what its engines cost an hour; for the cost of 1k tokens"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.endpoints) == (self.pool is not None):
            raise ValueError("needs a list of endpoints, or 'pool'")
        return self


class Ramp(Section):
    """Candidates get more and more."""

    stages: tuple[Share, ...] = Field(
        default=(0.05, 0.5),
        min_length=1,
        description="what candidates get, one after the other; "
        "after the last one everything, if `promote` says so",
    )
    dwell: Duration = Field(default=600.0, ge=0, description="least time of a stage")
    min_requests: Count = Field(
        default=500,
        ge=1,
        description="least requests of each candidate in a stage; stopping needs none",
    )

    @field_validator("stages")
    @classmethod
    def _rising(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        stages = value[:-1] if value[-1] == 1 else value  # the end is said by `promote`
        if not stages or list(stages) != sorted(set(stages)) or not 0 < stages[0] <= stages[-1] < 1:
            raise ValueError("must rise from above 0 % to at most 100 %")
        return stages


class Eligible(Section):
    """Whose requests take part; a key left out lets all."""

    tenants: tuple[Name, ...] = Field(default=(), description="of these tenants")
    sla: tuple[Name, ...] = Field(default=(), description="of these SLA classes")
    models: tuple[ModelName, ...] = Field(default=(), description="for these of the pool's models")
    hours: tuple[str, ...] = Field(default=(), description="within these hours (UTC), as `8-18`")
    share: Share = Field(default=1.0, gt=0, le=1, description="of the keys")

    @field_validator("hours")
    @classmethod
    def _spans(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            read_hours(text)
        return value


def read_hours(text: str) -> frozenset[int]:
    """Return the hours of `8-18` (8:00 to 18:00) or `22-6`. Raises ValueError."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError(f"{shown(text)} is no span of hours such as 8-18")
    start, end = int(first), int(last)
    if start > 23 or end > 24 or start == end:
        raise ValueError(f"{shown(text)} is no span of hours such as 8-18")
    return frozenset(hour % 24 for hour in range(start, end if end > start else end + 24))


class Fallback(Section):
    """A pool that takes over; only for tenants with `fallback: true`."""

    pool: Name = Field(description="which one")
    on: tuple[Literal["unhealthy", "saturated", "too_long", "bad_answer"], ...] = Field(
        default=("unhealthy",),
        min_length=1,
        description="when: nothing usable; full; the engine's context is too short; the answer is "
        "empty or one token over and over",
    )


class Shadow(Section):
    """Copies of requests go to another arm, whose answers nobody waits for."""

    arm: Name = Field(description="which arm gets the copies")
    share: Share = Field(default=0.05, gt=0, le=1, description="of the requests")
    concurrent: Count = Field(
        default=4, ge=1, description="copies under way at once; more are not made"
    )
    keep_bodies: bool = Field(
        default=False, description="keep both answers of pairs that differ, for the report"
    )


def read_margin(value: object) -> object:
    """Return a share of one; `off` has no end."""
    return inf if value == "off" else parse_share(value)


def _measure(value: str) -> str:
    if value not in MEASURES:
        hint = "" if isinstance(value, Substituted) else did_you_mean(value, MEASURES)
        raise ValueError(f"{shown(value)} is no measure; there are {', '.join(MEASURES)}{hint}")
    return value


Margin = Annotated[float, BeforeValidator(read_margin)]
MeasureName = Annotated[str, checked(_measure)]


class Experiment(Section):
    """Requests of one pool are shared out to arms, compared, and taken back from what does harm."""

    name: Name = Field(description="its name in metrics, headers and the admin API")
    pool: Name = Field(description="whose requests")
    arms: dict[Name, Annotated[Arm, BeforeValidator(_arm)]] = Field(
        description="by name, the first one is the control: what serves already"
    )
    split: dict[Name, Annotated[float, Field(ge=0)]] = Field(
        default={}, description="weights of the arms; default: all alike"
    )
    ramp: Ramp | None = Field(default=None, description="instead of a fixed split")
    sticky: Literal["tenant", "session", "user", "request"] = Field(
        default="request", description="what stays at its arm; `user` is the body's `user`"
    )
    eligible: Eligible = Eligible()
    group: Name | None = Field(
        default=None, description="a key takes part in one experiment of a group only"
    )
    holdout: Share = Field(
        default=0.0, ge=0, le=0.9, description="of the keys, kept at the control and told apart"
    )
    primary: _PRIMARIES = Field(default="ttft", description="the measure that decides")
    promote: Literal["better", "not_worse", "never"] = Field(
        default="better", description="what the primary must be surely for 100 %"
    )
    margin: Share = Field(default=0.05, gt=0, le=1, description="how much worse is `not_worse`")
    guardrails: dict[MeasureName, Margin] = Field(
        default={},
        description="measures that stop a candidate, with how much worse each may get (`off`: not "
        "at all); those in experiments.md are there by themselves",
    )
    max_errors: Share = Field(
        default=0.2, gt=0, lt=1, description="failed requests no candidate may have in any case"
    )
    alpha: Share = Field(
        default=0.05, gt=0, lt=1, description="chance of a false decision, all tests together"
    )
    stall: Duration = Field(
        default=10.0, gt=0, description="without a first byte for so long, it counts as failed"
    )
    warmup: Duration = Field(
        default=30.0, ge=0, description="of an arm's times, left out from its first request on"
    )
    shadow: Shadow | None = Field(default=None, description="copies of requests to another arm")

    @field_validator("arms")
    @classmethod
    def _two_at_least(cls, value: dict[str, Arm]) -> dict[str, Arm]:
        if len(value) < 2:
            raise ValueError("needs a control and at least one candidate")
        return value


class Quality(Section):
    """Moves traffic away from an endpoint whose answers have become bad."""

    share: Share = Field(default=0.1, gt=0, le=1, description="of the answers, looked at")
    window: Duration = Field(default=60.0, gt=0, description="counted over one to two of these")
    out: Duration = Field(default=60.0, gt=0, description="how long it then gets nothing more")
    empty: Share = Field(default=0.1, gt=0, le=1, description="answers without a token, at most")
    repeated: Share = Field(
        default=0.05, gt=0, le=1, description="answers of one token over and over, at most"
    )
    broken_json: Share = Field(
        default=0.1, gt=0, le=1, description="answers that are no JSON where it was asked for"
    )
