"""A weighted sum of what is cached, what is under way, and how full the KV cache is.

    score = hit * (cached share of the prompt) + load * 1 / (1 + tokens in flight / 1000 / places)
            + kv * (1 - KV use)

divided by the sum of the weights. An engine that does not say its KV use counts as half full.

When not to use it: where load differs by far more than the weights can say.
`sticky_until_saturated` compares tokens with tokens and needs no tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.prefixcache.index import Index

    from .contracts import EndpointView, Request

_SCALE = 1000.0
_UNKNOWN = 0.5


class Weighted:
    """Rates by weights."""

    name = "weighted"

    def __init__(self, index: Index, hit: float = 2.0, load: float = 1.0, kv: float = 0.5) -> None:
        self._index = index
        self._hit = hit
        self._load = load
        self._kv = kv

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        del now
        chain = request.blocks
        hits, blocks = self._index.worth(chain), len(chain) or 1
        whole = (self._hit + self._load + self._kv) or 1.0
        return [
            (
                self._hit * hits.get(e.name, 0) / blocks
                + self._load * _SCALE / (_SCALE + e.in_flight_tokens / (e.limit * e.share or 1.0))
                + self._kv * (1.0 - (_UNKNOWN if e.kv_use is None else e.kv_use))
            )
            / whole
            for e in endpoints
        ]
