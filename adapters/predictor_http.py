"""A length predictor at the other end of HTTP, for fleets that share one.

`POST URL` with `{"features": [{...}, ...]}`, each as `LengthFeatures` has them, is answered by
`{"predictions": [{"tokens", "quantiles", "buckets", "rank"}, ...]}`, one for each in order; `rank`,
which requests are ordered by, is the natural logarithm of 1 + tokens, give or take. It is asked
from the predictor's thread, so an ordinary blocking client does; what takes longer than `TIMEOUT`,
or is longer than any answer can be, is an error, and the mean stands in. Errors are logged, so they
name the place without what may be secret in its URL.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

import httpx
import msgspec

from forebay.scheduler.length import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.scheduler.length import Example, LengthFeatures

TIMEOUT = 0.25
"""Seconds: long for a prediction, short beside a queue."""
_MOST_BYTES = 1 << 20


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
        self._shown = str(httpx.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
        self._client = client or httpx.Client(timeout=TIMEOUT)

    def fit(self, examples: Sequence[Example]) -> NoReturn:
        """Raise: what is far away learns where it is."""
        place = self._shown
        raise TypeError(f"the predictor at {place} learns where it runs ({len(examples)} given)")

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        """Predict one answer's length for each. Raises OSError when no good answer comes."""
        try:
            body = msgspec.json.encode({"features": [each._asdict() for each in features]})
            told = msgspec.json.decode(self._ask(body), type=_Answer).predictions
        except (httpx.HTTPError, OSError, msgspec.DecodeError, RecursionError) as error:
            raise OSError(f"the predictor at {self._shown}: {_short(error)}") from error
        if len(told) != len(features):
            raise OSError(f"the predictor at {self._shown} answered {len(told)} of {len(features)}")
        return [Prediction(each.tokens, each.quantiles, each.buckets, each.rank) for each in told]

    def _ask(self, body: bytes) -> bytes:
        """Return what is answered; OSError where that comes too slowly, is too long or an error."""
        headers = {"content-type": "application/json"}
        until = time.monotonic() + TIMEOUT
        parts: list[bytes] = []
        size = 0
        with self._client.stream("POST", self.url, content=body, headers=headers) as answer:
            if not answer.is_success:
                raise OSError(f"{answer.status_code} {answer.reason_phrase}")
            for part in answer.iter_bytes():
                size += len(part)
                parts.append(part)
                if size > _MOST_BYTES:
                    raise OSError("the answer is over 1 MiB")
                if time.monotonic() > until:
                    raise OSError(f"no whole answer within {TIMEOUT:g} s")
        return b"".join(parts)


def _short(error: Any) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
