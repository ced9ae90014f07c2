"""Keeps a tenant that floods caches to a part of the endpoints, while these have room.

An engine's cache drops what was used longest ago, whoever's it is. So a tenant whose prompts never
come again empties every cache that it reaches, and what is known here of other tenants' prefixes
becomes untrue. While a tenant brings more new blocks than it may, its requests go to `share` of the
endpoints (at least one), the same ones each time, chosen by rendezvous hashing. Only what finds no
room there goes elsewhere: nobody waits longer for it.

When not to use it: one endpoint, or tenants whose prompts are all new, whatever they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .contracts import EndpointView, Request, Score

_hash = xxhash.xxh3_64_intdigest


class Confined:
    """Rates as another score does, and puts a flooding tenant's own endpoints before all others."""

    name = "confined"

    def __init__(
        self,
        inner: Score,
        floods: Callable[[str, float], bool],
        share: float = 0.5,
        *,
        names: tuple[str, ...] = (),
    ) -> None:
        """Take who tells whether a tenant brings too much that is new, and all endpoints."""
        self.inner = inner
        self._floods = floods
        self._share = share
        self._names = names
        self._kept_to: dict[str, frozenset[str]] = {}

    def among(self, names: tuple[str, ...]) -> None:
        """Take the endpoints that there are."""
        self._names = names
        self._kept_to.clear()

    def kept_to(self, tenant: str) -> frozenset[str]:
        """Return the endpoints that a tenant is kept to when it floods."""
        found = self._kept_to.get(tenant)
        if found is None:
            seed = _hash(tenant.encode("utf-8", "replace"))
            ranked = sorted(self._names, key=lambda name: _hash(name.encode(), seed))
            count = max(1, int(self._share * len(ranked)))
            found = self._kept_to[tenant] = frozenset(ranked[:count])
        return found

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        scores = self.inner(request, endpoints, now)
        if not self._floods(request.tenant, now):
            return scores
        own = self.kept_to(request.tenant)
        pairs = zip(scores, endpoints, strict=True)
        return [0.5 * score + (0.5 if e.name in own else 0.0) for score, e in pairs]
