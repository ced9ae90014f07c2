"""How a pool treats endpoints that speculate: the section `pools[].speculation`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .base import Count, Duration, Section, Share

Method = Literal[
    "draft_model",
    "eagle",
    "eagle3",
    "lookahead",
    "medusa",
    "mtp",
    "ngram",
    "rest",
    "suffix",
]


class Speculation(Section):
    """Whom speculation pays for, and when an endpoint's is left alone."""

    max_temperature: float = Field(
        default=1.0, ge=0, le=2, description="requests above it go to plain endpoints"
    )
    min_output_tokens: Count = Field(
        default=50, ge=0, description="as do those that expect a shorter answer than this"
    )
    max_batch: Count = Field(
        default=32, ge=1, description="requests in flight from which an endpoint's does not pay"
    )
    min_accept_rate: Share = Field(
        default=0.6, ge=0, le=1, description="share of guessed tokens below which it is left alone"
    )
    return_accept_rate: Share = Field(
        default=0.65, ge=0, le=1, description="share at which a trial brings it back"
    )
    window: Duration = Field(default=60.0, gt=0, description="over which the share is measured")
    rest: Duration = Field(
        default=60.0, gt=0, description="until the first trial; doubled after each that fails"
    )
    min_drafts: Count = Field(
        default=50, ge=1, description="drafts in the window below which nothing is concluded"
    )

    @model_validator(mode="after")
    def _returns_above(self) -> Speculation:
        if self.return_accept_rate < self.min_accept_rate:
            raise ValueError("return_accept_rate must be at least min_accept_rate")
        return self
