"""What a length predictor is told and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome, Request, Route


class LengthFeatures(NamedTuple):
    """What is known of a request when the length of its answer is predicted.

    A tuple because one is made for each request: a frozen dataclass takes four times as long.
    """

    route: Route
    model: str
    tenant: str
    prompt_tokens: int
    max_tokens: int | None = None
    """The most tokens one answer may have; None when the caller set no limit."""
    answers: int = 1
    """How many answers are asked for: prompts times `n`."""


class LengthPredictor(Protocol):
    """Predicts how many tokens an engine will put out for a request."""

    def predict(self, features: LengthFeatures) -> int:
        """Return the predicted output tokens of all answers together."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A predictor that learns while it serves."""

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how a request that it predicted ended."""
        ...
