"""Keeps a session on one endpoint, by hashing: no state, and the same on every replica.

Rendezvous hashing (Thaler and Ravishankar, 1998): each endpoint gets a number from the session and
its own name, and the highest has it. An endpoint that leaves takes only its own sessions along, and
what fills up or falls ill is passed over by the filters, so a session gives way to health.

When not to use it: where sessions differ much in size, or share long prefixes across sessions. It
knows nothing of load or caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from .score_least_tokens import LeastTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contracts import EndpointView, Request

_hash = xxhash.xxh3_64_intdigest
_RANGE = float(1 << 64)


@dataclass(slots=True)
class HashRing:
    """Prefers the endpoint that a request's session hashes to; without one, its first block's.

    What has neither goes by load.
    """

    name: str = "hash_ring"

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        if request.session:
            seed = _hash(f"{request.tenant}\0{request.session}".encode("utf-8", "replace"))
        elif request.blocks:
            seed = int(request.blocks[0])
        else:
            return LeastTokens()(request, endpoints, now)
        return [_hash(e.name.encode(), seed) / _RANGE for e in endpoints]
