"""What a length predictor would have said of a trace's requests.

`oracle` knows the true length. `mean` knows how long the tenant's answers were on average so far
(all tenants' until it has seen eight of its own). `none` says the same for all. `ssjf` errs as a
published predictor did: by the quantile of a request's true length among the trace's, a class is
drawn from how that predictor confused its five classes, and the class stands for the mean length
that the trace's requests of this class have. `encoder` and `linear` err as those of this package
were measured to, in the same manner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from forebay.scheduler.length import ConstantLength
from forebay.scheduler.length.mean import Lengths

from .errors import ENCODER, LINEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.scheduler.traces import TraceRequest

_ENOUGH = 8

CONFUSION = (
    (0.907, 0.056, 0.021, 0.011, 0.006),
    (0.935, 0.049, 0.010, 0.005, 0.001),
    (0.802, 0.154, 0.024, 0.015, 0.004),
    (0.710, 0.222, 0.040, 0.023, 0.005),
    (0.645, 0.266, 0.056, 0.027, 0.006),
    (0.350, 0.525, 0.077, 0.039, 0.008),
    (0.170, 0.641, 0.114, 0.065, 0.010),
    (0.132, 0.621, 0.172, 0.069, 0.006),
    (0.088, 0.557, 0.254, 0.090, 0.011),
    (0.072, 0.467, 0.335, 0.115, 0.011),
    (0.052, 0.367, 0.429, 0.139, 0.014),
    (0.033, 0.256, 0.489, 0.201, 0.021),
    (0.024, 0.203, 0.476, 0.275, 0.022),
    (0.023, 0.145, 0.465, 0.344, 0.023),
    (0.017, 0.117, 0.412, 0.427, 0.027),
    (0.014, 0.091, 0.341, 0.518, 0.037),
    (0.014, 0.079, 0.288, 0.576, 0.043),
    (0.013, 0.067, 0.228, 0.628, 0.064),
    (0.014, 0.056, 0.215, 0.635, 0.079),
    (0.012, 0.057, 0.176, 0.588, 0.167),
)
"""Shares of the five classes predicted, for each twentieth of true lengths, the shortest first.

Counted over the 68,413 predictions that the authors of SSJF published for LMSYS-Chat-1M answers of
vicuna-13b (James-QiuHaoran/LLM-serving-with-proxy-models, commit 4b866466, Apache-2.0,
model-serving/prediction/final/predictions_warmup_multi_cls_1000K.csv); 59 % of their classes are
right."""


class Guess(Protocol):
    """Says how long an answer may become before it is known."""

    def __call__(self, index: int, request: TraceRequest) -> int:
        """Return the predicted output tokens of the trace's request at `index`."""
        ...

    def ended(self, request: TraceRequest) -> None:
        """Take in that an answer is complete."""
        ...


class Oracle:
    """Knows."""

    def __call__(self, index: int, request: TraceRequest) -> int:  # noqa: ARG002 - see Guess
        """Return the true length."""
        return request.output_tokens

    def ended(self, request: TraceRequest) -> None:
        """See Guess."""


class Same:
    """Says one length for all, as where no predictor is configured."""

    def __init__(self) -> None:
        self._tokens = ConstantLength().tokens

    def __call__(self, index: int, request: TraceRequest) -> int:  # noqa: ARG002 - see Guess
        """Return the one length, or what the caller allows."""
        return clip(self._tokens, request)

    def ended(self, request: TraceRequest) -> None:
        """See Guess."""


class RunningMean:
    """Says the mean of the tenant's complete answers."""

    def __init__(self) -> None:
        self._all = Lengths()
        self._tenants: dict[str, Lengths] = {}
        self._first = ConstantLength().tokens

    def __call__(self, index: int, request: TraceRequest) -> int:  # noqa: ARG002 - see Guess
        """Return the mean."""
        own = self._tenants.get(request.tenant)
        known = own if own is not None and own.seen >= _ENOUGH else self._all
        return clip(round(known.mean) if known.seen >= _ENOUGH else self._first, request)

    def ended(self, request: TraceRequest) -> None:
        """Count an answer."""
        self._all.add(request.output_tokens)
        self._tenants.setdefault(request.tenant, Lengths()).add(request.output_tokens)


class Published:
    """Errs as the published predictor did; drawn once for each request of the trace."""

    def __init__(self, trace: Sequence[TraceRequest], seed: int) -> None:
        rng = Random(seed)  # noqa: S311 - draws a predictor's errors
        lengths = sorted(request.output_tokens for request in trace)
        classes = [_draw(_twentieth(r.output_tokens, lengths), rng) for r in trace]
        tokens = _mean_lengths(trace, classes)
        self._said = [tokens[each] for each in classes]

    def __call__(self, index: int, request: TraceRequest) -> int:
        """Return the mean length of the class drawn."""
        return clip(self._said[index], request)

    def ended(self, request: TraceRequest) -> None:
        """See Guess."""


class Measured:
    """Errs as a predictor of ours was measured to; drawn once for each request of the trace.

    For the twentieth of a true length a tenth is drawn, and a place in it; what is said is the
    length that stands there among the trace's.
    """

    def __init__(
        self, shares: Sequence[Sequence[float]], trace: Sequence[TraceRequest], seed: int
    ) -> None:
        rng = Random(seed)  # noqa: S311 - draws a predictor's errors
        lengths = sorted(request.output_tokens for request in trace)
        self._said = [
            _at(
                lengths,
                (_draw_of(shares[_twentieth(r.output_tokens, lengths)], rng) + rng.random()),
            )
            for r in trace
        ]

    def __call__(self, index: int, request: TraceRequest) -> int:
        """Return the length that was drawn."""
        return clip(self._said[index], request)

    def ended(self, request: TraceRequest) -> None:
        """See Guess."""


def _at(lengths: Sequence[int], tenths: float) -> int:
    return lengths[min(len(lengths) - 1, int(tenths / 10 * len(lengths)))]


def clip(tokens: int, request: TraceRequest) -> int:
    """Return a prediction, at least 1 and at most what the caller allows."""
    limit = request.max_tokens
    return max(1, tokens if limit is None else min(tokens, limit))


def _twentieth(length: int, lengths: Sequence[int]) -> int:
    """Return which twentieth of the sorted lengths this one is in; equals are in the middle."""
    middle = (bisect_left(lengths, length) + bisect_right(lengths, length)) / 2
    return min(len(CONFUSION) - 1, int(middle / len(lengths) * len(CONFUSION)))


def _draw(twentieth: int, rng: Random) -> int:
    return _draw_of(CONFUSION[twentieth], rng)


def _draw_of(shares: Sequence[float], rng: Random) -> int:
    left = rng.random() * sum(shares)
    for number, share in enumerate(shares):
        left -= share
        if left < 0:
            return number
    return len(shares) - 1


def _mean_lengths(trace: Sequence[TraceRequest], classes: Sequence[int]) -> dict[int, int]:
    sums: dict[int, tuple[int, int]] = {}
    for request, number in zip(trace, classes, strict=True):
        count, tokens = sums.get(number, (0, 0))
        sums[number] = (count + 1, tokens + request.output_tokens)
    return {number: round(tokens / count) for number, (count, tokens) in sums.items()}


SIZED = frozenset({"encoder", "linear", "oracle", "ssjf"})
"""Those that tell one request from another."""
GUESSES: dict[str, Callable[[Sequence[TraceRequest], int], Guess]] = {
    "oracle": lambda _trace, _seed: Oracle(),
    "mean": lambda _trace, _seed: RunningMean(),
    "none": lambda _trace, _seed: Same(),
    "ssjf": Published,
    "encoder": partial(Measured, ENCODER),
    "linear": partial(Measured, LINEAR),
}


def make_guess(name: str, trace: Sequence[TraceRequest], seed: int) -> Guess:
    """Make the predictor of that name for a trace; raises ValueError when there is none."""
    if name not in GUESSES:
        raise ValueError(f"no predictor {name!r}: take one of {', '.join(GUESSES)}")
    return GUESSES[name](trace, seed)
