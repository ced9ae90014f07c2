"""Where stored responses lie: an id belongs to one tenant and to one endpoint.

Engines keep responses in their own memory, so what continues one must go where it is. Capped in
count and age; an id that is not here, or is another tenant's, does not exist.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class Stored(NamedTuple):
    """Where one response lies, and whose it is."""

    tenant: str
    pool: str
    endpoint: str
    model: str
    """As its caller named it."""
    engine_model: str
    """As that pool's engines name it: an arm's pool may know it by this name only."""
    expires: float


class StoredResponses:
    """Remembers the latest responses, each for `ttl` seconds after it was last asked for."""

    def __init__(self, *, most: int = 100_000, ttl: float = 3600.0) -> None:
        self._most = most
        self._ttl = ttl
        self._entries: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._entries)

    def add(  # noqa: PLR0913 - all by name
        self,
        response: str,
        *,
        tenant: str,
        pool: str,
        endpoint: str,
        model: str,
        engine_model: str,
        now: float,
    ) -> None:
        """Remember where a response lies; an id that another tenant holds stays that tenant's."""
        known = self._entries.get(response)
        if known is not None and known.tenant != tenant and known.expires > now:
            return
        until = now + self._ttl
        self._entries[response] = Stored(tenant, pool, endpoint, model, engine_model, until)
        self._entries.move_to_end(response)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def find(self, response: str, tenant: str, now: float) -> Stored | None:
        """Return where a tenant's response lies; None for any other id."""
        stored = self._entries.get(response)
        if stored is None or stored.tenant != tenant:
            return None
        if stored.expires <= now:
            del self._entries[response]
            return None
        self._entries[response] = stored._replace(expires=now + self._ttl)
        self._entries.move_to_end(response)
        return stored
