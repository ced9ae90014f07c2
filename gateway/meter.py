"""What a tenant may use: reserved before a call goes down, settled on what it really took.

The seam for quotas. Without them every call is let in, and a lease holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome, Request


class Lease(Protocol):
    """What is reserved for one call; settled once, whatever becomes of the call."""

    def settle(self, outcome: Outcome) -> None:
        """Replace the estimate by what the outcome says; never waits."""
        ...


class Meter(Protocol):
    """Reserves for calls."""

    def reserve(self, request: Request) -> Lease:
        """Reserve the estimate of one call. Raises QuotaExceeded."""
        ...


class _Nothing:
    def settle(self, outcome: Outcome) -> None:
        """See Lease."""


class Unmetered:
    """Lets everything in."""

    _lease = _Nothing()

    def reserve(self, request: Request) -> Lease:  # noqa: ARG002 - the protocol's signature
        """See Meter."""
        return self._lease
