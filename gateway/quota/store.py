"""What is asked of whoever keeps the counters, and what is answered.

Operations are values, so that a loop turn's worth of them goes out in one call and the same suite
can ask a store in memory and a store in Redis. They travel as msgpack arrays of their tag and their
fields: `lua/quota.lua` reads them in this order.

Each but a reservation may be sent twice, since whoever got no answer cannot know what became of
it; a reservation without an answer is settled, or asserted. A lease is named by its request's id:
settling one that is not there does nothing, asserting one that is there renews it, and what is
carried over has a name of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from forebay.policies.quota import UNLIMITED, Caps, Dates

if TYPE_CHECKING:
    from collections.abc import Sequence

LEASE_S = 60.0
"""How long a lease lives unless it is renewed."""


class Reserve(Struct, array_like=True, tag=0, gc=False):
    """Take an estimate if it fits into all limits. Answered by Reserved."""

    lease: str
    requests: int
    tokens: int
    nano: int


class Settle(Struct, array_like=True, tag=1, gc=False):
    """Put what was used in the place of a lease; zeros give all of it back. Answered by 1 or 0."""

    lease: str
    requests: int
    tokens: int
    nano: int


class Renew(Struct, array_like=True, tag=2, gc=False):
    """Keep leases alive. Answered by those that are gone."""

    leases: list[str]


class Assert(Struct, array_like=True, tag=3, gc=False):
    """Hold a lease whatever the limits say: it was granted before. Answered by 1."""

    lease: str
    age_s: float
    day: int
    requests: int
    tokens: int
    nano: int


class Carry(Struct, array_like=True, tag=4, gc=False):
    """Count what was used while the store was away. Answered by 1, or 0 when it was counted."""

    name: str
    age_s: float
    day: int
    requests: int
    tokens: int
    nano: int


class Usage(Struct, array_like=True, tag=5, gc=False):
    """Tell what is counted now. Answered by Used."""


Operation = Reserve | Settle | Renew | Assert | Carry | Usage


class Reserved(Struct, array_like=True, gc=False):
    """Whether a lease was granted, and what the window then held."""

    granted: bool
    limit: int
    """The limit that is short: an index into `policies.quota.NAMES`."""
    wait_s: float
    """Until it would pass, for what frees up with time: -1 never, -2 at the end of the period."""
    requests: int
    tokens: int


class Used(Struct, array_like=True, gc=False):
    """All that is counted for a tenant now."""

    requests: int
    tokens: int
    concurrent: int
    day_tokens: int
    month_tokens: int
    day_nano: int
    month_nano: int


NEVER, PERIOD = -1.0, -2.0

Reply = Reserved | int | list[str] | Used


class Batch(Struct, gc=False):
    """What is asked for one tenant, in order."""

    tenant: str
    caps: Caps
    dates: Dates
    operations: list[Operation]


class StoreAway(Exception):  # noqa: N818 - the words of the house, not a suffix
    """The store did not answer, or not in time."""


class Store(Protocol):
    """Keeps the counters of all tenants."""

    async def apply(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        """Do all that is asked, each tenant's in its order. Raises StoreAway."""
        ...

    async def close(self) -> None:
        """Let go of what is open."""
        ...


class SharedStore(Store, Protocol):
    """A store of many replicas."""

    async def seen(self, replica: str) -> int:
        """Say that a replica is there; return how many were seen lately. Raises StoreAway."""
        ...


def wire_caps(caps: Caps) -> tuple[float, ...]:
    """Return limits as they travel: -1 is none."""
    return tuple(-1 if cap == UNLIMITED else cap for cap in caps.numbers())
