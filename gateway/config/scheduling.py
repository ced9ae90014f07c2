"""How a pool orders, guards and limits what waits: the sections `pools[].scheduling` is made of."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .base import Bytes, Count, Duration, Name, Section, Share
from .suggest import did_you_mean
from .units import Substituted, shown
from .values import check_url


def read_limit(value: object) -> object:
    """Return a limit, 0 for `auto`."""
    if value == "auto":
        return 0
    if isinstance(value, int) and value < 1:
        raise ValueError("must be 1 or more, or 'auto'")
    if isinstance(value, float) or (isinstance(value, str) and not value.strip().isdecimal()):
        raise ValueError("must be a whole number, or 'auto'")
    return value


Limit = Annotated[int, BeforeValidator(read_limit)]
"""Requests at once; 0 is what `auto` becomes."""
Order = Literal["aged", "bounded", "edf", "fair", "fcfs", "hrrn", "ml", "sjf"]


class Reread(Section):
    """How often a waiting request's rank is read anew, whichever comes first."""

    dispatches: int = Field(default=8, ge=1, description="after so many dispatches")
    after: Duration = Field(default=0.05, ge=0, description="after so long")


class Guards(Section):
    """What no ordering may do."""

    longest_wait: Duration = Field(
        default=300.0,
        gt=0,
        description="a request past it is overdue and goes first in its tenant's turn; a tenth "
        "past it, it is refused with 429; an SLA class may name its own",
    )
    overdue_share: Share = Field(
        default=0.25, ge=0, le=1, description="of the cost, for overdue requests across tenants"
    )
    long_share: Share = Field(
        default=0.1, ge=0, le=1, description="of the cost, kept for long requests"
    )
    long_tokens: Count = Field(
        default=8192,
        ge=1,
        description="from this predicted cost on a request is long: uncached prompt tokens and "
        "twice the output tokens",
    )
    early: bool = Field(
        default=True,
        description="refuse at once what would wait that long, by how the queue drains now",
    )
    recalls: int = Field(
        default=2,
        ge=0,
        le=2,
        description="how often a stream without a byte may be called back for a higher class",
    )


class DoubleQueue(Section):
    """A queue of their own for long requests."""

    long_tokens: Count = Field(
        default=8192, ge=1, description="from this predicted cost on a request is long"
    )
    long_share: Share = Field(
        default=0.3, gt=0, lt=1, description="of the cost, for long requests while both wait"
    )


class LongPool(Section):
    """Where long requests go instead."""

    pool: Name = Field(description="the other pool, whose engines serve the same models")
    tokens: Count = Field(
        default=8192,
        ge=1,
        description="from this predicted cost on: prompt tokens and twice the output tokens",
    )


class Window(Section):
    """How `max_in_flight: auto` finds an endpoint's limit."""

    ttft: Duration = Field(
        default=0.5, gt=0, description="placed to first token, as long as it may take"
    )
    tpot: Duration = Field(default=0.05, gt=0, description="a token after the first, likewise")
    least: int = Field(default=1, ge=1, description="never fewer at once")
    most: int = Field(default=1024, ge=1, description="never more at once")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.most < self.least:
            raise ValueError("'most' is less than 'least'")
        return self


class Mark(Section):
    """What holds from a share of use on."""

    at: Share = Field(gt=0, le=1, description="use of the KV cache or of the queue")
    queue: Share = Field(
        default=1.0, gt=0, le=1, description="of the queue's limits, where it is KV use"
    )
    max_prompt: Count | None = Field(
        default=None, ge=1, description="longest prompt let in, in tokens"
    )
    short_first: bool = Field(default=False, description="shortest first in each tenant's turn")
    admit: bool = Field(default=True, description="false: nothing new is let in")
    alarm: bool = Field(
        default=False, description="its `max_prompt` holds until use is below the first mark again"
    )


class Watermarks(Section):
    """How much is let in while KV cache or queue fill; without the section, as much as fits."""

    marks: tuple[Mark, ...] = Field(
        default=(),
        description="rising; default: those at 60, 80, 90 and 95 % in policies.md",
    )
    gap: Share = Field(
        default=0.05, ge=0, le=0.5, description="a mark is left only this far below it"
    )
    stale_as: Share = Field(
        default=0.7, ge=0, le=1, description="KV use of an endpoint that does not report it"
    )
    stale_after: Duration = Field(default=10.0, gt=0, description="age at which a report is stale")

    @model_validator(mode="after")
    def _rising(self) -> Self:
        steps = [mark.at for mark in self.marks]
        if steps != sorted(set(steps)):
            raise ValueError("'marks' must rise from one to the next")
        return self


_PREDICTORS = ("encoder", "linear", "mean", "none")


def read_predictor(value: object) -> object:
    """Return a predictor's name, or the URL of one."""
    if value in _PREDICTORS:
        return value
    if isinstance(value, str) and re.match(r"https?://[^\s/]", value):
        return check_url(value)
    hint = "" if isinstance(value, Substituted) else did_you_mean(str(value), _PREDICTORS)
    known = ", ".join(_PREDICTORS)
    raise ValueError(f"{shown(value)} is not one of {known}, nor the URL of a predictor{hint}")


class Gate(Section):
    """When predictions are believed; otherwise the mean stands in and `ml` is `fair`."""

    accuracy: Share = Field(
        default=0.6, ge=0, le=1, description="share of answers in the predicted bucket"
    )
    tau: Share = Field(
        default=0.1, ge=0, le=1, description="rank correlation (Kendall's tau-b) with the truth"
    )


class Prediction(Section):
    """How prompts are read, where `predictor` reads them."""

    budget: Duration = Field(
        default=0.005,
        gt=0,
        description="a request that has waited longer for the reading thread is not read",
    )
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="folder of `forebay predictor train`; default: the weights shipped",
    )
    challenger: str | None = Field(
        default=None,
        min_length=1,
        description="folder of weights that take over step by step, if they are better",
    )
    gate: Gate = Gate()
    outcomes: str | None = Field(
        default=None,
        min_length=1,
        description="file of features and lengths to learn from, "
        "prompts and tenants as hashes; a relative path is of the working directory",
    )
    outcomes_limit: Bytes = Field(
        default=64 << 20, ge=1 << 16, description="of that file and the one before it"
    )
    prompts: bool = Field(default=False, description="write prompts' texts to that file too")


class Scheduling(Section):
    """Who goes next, and what guards it."""

    predictor: Annotated[str, BeforeValidator(read_predictor)] = Field(
        default="none",
        description="of output tokens: `mean` of tenant and model; `linear` and `encoder` read the "
        "prompt, as does a URL's; `none`: all alike",
    )
    prediction: Prediction = Prediction()
    guards: Guards = Guards()
    reread: Reread = Reread()
    double_queue: DoubleQueue | None = Field(
        default=None, description="long requests wait in a queue of their own"
    )
    long_pool: LongPool | None = Field(
        default=None, description="send long requests to another, slower pool"
    )
    watermarks: Watermarks | None = Field(default=None, description="admission by use")
    window: Window = Window()
    engine_priority: bool = Field(
        default=False, description="tell engines the class's rank as priority; they must take it"
    )
    journal: str | None = Field(
        default=None,
        min_length=1,
        description="file that each event and decision is written to, begun anew at each start; "
        "to find out why, it costs time",
    )
