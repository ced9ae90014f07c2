"""A length predictor at the other end of HTTP, for fleets that share one.

`POST URL` with `{"features": [{...}, ...]}`, each as `LengthFeatures` has them, is answered by
`{"predictions": [{"tokens", "quantiles", "buckets", "rank"}, ...]}`, one for each in order. It is
asked from the predictor's thread, so an ordinary blocking client does; what takes longer than
`timeout` is an error, and the mean stands in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import httpx
import msgspec

from forebay.scheduler.length import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.scheduler.length import Example, LengthFeatures

TIMEOUT = 0.25
"""Seconds: long for a prediction, short beside a queue."""


class _Told(msgspec.Struct):
    tokens: float
    quantiles: tuple[float, float, float]
    buckets: tuple[float, float, float, float]
    rank: float


class _Answer(msgspec.Struct):
    predictions: list[_Told]


class RemoteLength:
    """Asks a predictor at `url`; keeps one connection alive."""

    def __init__(self, url: str, *, client: httpx.Client | None = None) -> None:
        self.url = url
        self._client = client or httpx.Client(timeout=TIMEOUT)

    def fit(self, examples: Sequence[Example]) -> NoReturn:
        """Raise: what is far away learns where it is."""
        raise TypeError(f"the predictor at {self.url} learns where it runs ({len(examples)} given)")

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        """Predict one answer's length for each. Raises OSError when no good answer comes."""
        try:
            body = msgspec.json.encode({"features": [each._asdict() for each in features]})
            headers = {"content-type": "application/json"}
            answer = self._client.post(self.url, content=body, headers=headers)
            answer.raise_for_status()
            told = msgspec.json.decode(answer.content, type=_Answer).predictions
        except (httpx.HTTPError, msgspec.DecodeError, RecursionError) as error:
            raise OSError(f"the predictor at {self.url}: {_short(error)}") from error
        if len(told) != len(features):
            raise OSError(f"the predictor at {self.url} answered {len(told)} of {len(features)}")
        return [Prediction(each.tokens, each.quantiles, each.buckets, each.rank) for each in told]


def _short(error: Any) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
