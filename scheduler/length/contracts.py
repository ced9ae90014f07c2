"""What a length predictor is told, what it answers, and what it must be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    text: str = ""
    """The prompt, all turns; empty where nobody looks at it."""
    template: str = ""
    """Hash of what comes before the caller's own words: system prompt and tools."""
    turns: int = 1
    tools: int = 0
    schema: bool = False
    """The answer must be JSON of some shape."""
    stop: bool = False
    """The caller named texts that end an answer."""
    temperature: float | None = None
    hour: int | None = None
    """Of the day, UTC."""


class Example(NamedTuple):
    """A request whose answer is known, to learn from."""

    features: LengthFeatures
    tokens: int
    """Of one answer."""
    group: str = ""
    """The set of data it is from; scores are told by set."""
    key: str = ""
    """The prompt's hash: examples of one prompt are never parted."""
    cut: bool = False
    """The answer was longer than `tokens`: it was cut."""


class Prediction(NamedTuple):
    """How long one answer may become, in tokens."""

    tokens: float
    """Best single guess."""
    quantiles: tuple[float, float, float]
    """Lengths that .1, .5 and .9 of such answers do not exceed."""
    buckets: tuple[float, float, float, float]
    """Probabilities of <= 50, <= 200, <= 1000 and more."""
    rank: float
    """Orders requests by length; has no unit."""


class NotFitted(RuntimeError):  # noqa: N818 - the words of scikit-learn
    """The predictor has learnt nothing yet: call `fit`, or load weights."""


class LengthPredictor(Protocol):
    """Learns from examples and predicts the lengths of answers."""

    def fit(self, examples: Sequence[Example]) -> Self:
        """Learn; forgets what was learnt before."""
        ...

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        """Predict one answer's length for each. Raises NotFitted."""
        ...


class Estimator(Protocol):
    """Says at once how much a request will put out; never waits."""

    def estimate(self, features: LengthFeatures) -> int:
        """Return the predicted output tokens of all answers together."""
        ...


@runtime_checkable
class Learning(Protocol):
    """An estimator that learns while it serves."""

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how a request that it predicted ended."""
        ...
