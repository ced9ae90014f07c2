"""What a tenant may use: reserved before a call goes down, settled on what it really took.

The seam for quotas. Without them every call is let in, and a lease holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome, Rejected, Request

Headers = tuple[tuple[bytes, bytes], ...]


class Asking(Protocol):
    """Who asks for a lease, and is told later where it cannot be said at once."""

    def granted(self) -> None:
        """Go on: the lease is there."""
        ...

    def refused(self, error: Rejected) -> None:
        """Answer with the error: there is no lease."""
        ...

    def revoked(self, error: Rejected) -> None:
        """Stop, whatever has been sent: the lease is gone, and others may have its place."""
        ...


class Lease(Protocol):
    """What is reserved for one call; settled once, whatever becomes of the call."""

    pending: bool
    """Not yet granted or refused: whoever asked is told."""

    def settle(self, outcome: Outcome) -> None:
        """Replace the estimate by what the outcome says; never waits."""
        ...

    def headers(self) -> Headers:
        """Return what the caller is told of its limits."""
        ...


class Meter(Protocol):
    """Reserves for calls."""

    def reserve(self, request: Request, model: str, asking: Asking) -> Lease:
        """Reserve the estimate of one call; `model` is the caller's name for it.

        Raises QuotaExceeded, or Overloaded where the counters cannot be reached.
        """
        ...


class _Nothing:
    pending = False

    def settle(self, outcome: Outcome) -> None:
        """See Lease."""

    def headers(self) -> Headers:
        """See Lease."""
        return ()


class Unmetered:
    """Lets everything in."""

    _lease = _Nothing()

    def reserve(self, request: Request, model: str, asking: Asking) -> Lease:  # noqa: ARG002 - the protocol's signature
        """See Meter."""
        return self._lease
