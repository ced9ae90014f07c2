"""How much may wait in one queue, and the words for those who may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Overloaded, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.policies.contracts import Request

    from .waiting import Waiting


class QueueLimits:
    """Limits on count, on bytes, and on the count of each class."""

    __slots__ = ("_classes", "_max_bytes", "caps", "max_requests")

    def __init__(
        self, max_requests: int, max_bytes: int, classes: Mapping[str, int] | None = None
    ) -> None:
        self.max_requests = max_requests
        self._max_bytes = max_bytes
        self._classes = classes or {}
        self.caps = bool(classes)
        """Some class has a limit of its own."""

    def class_full(self, request: Request, waiting: Waiting) -> str:
        """Say that as many of its class wait as may; empty when there is room."""
        cap = self._classes.get(request.sla) if self._classes else None
        if cap is None or (known := waiting.of_class(request.sla)) < cap:
            return ""
        return f"{known} requests of class {request.sla!r} wait"

    def tenant_full(self, request: Request, waiting: Waiting) -> str:
        """Say that as many of its tenant wait as may; empty when there is room."""
        share = request.queue_share
        if share is None:
            return ""
        most = max(1, int(share * self.max_requests))
        if (known := waiting.of_tenant(request.tenant)) < most:
            return ""
        return f"{known} requests of this tenant wait"

    def full(self, request: Request, waiting: Waiting, share: float) -> str:
        """Say what is full; empty when `share` of the limits leaves room for one more."""
        if waiting.size >= self.max_requests * share:
            return f"{waiting.size} requests wait"
        if waiting.bytes + request.body_bytes > self._max_bytes * share:
            return f"{waiting.bytes} bytes of requests wait"
        return ""

    def bytes_over(self, request: Request, waiting: Waiting, share: float) -> int:
        """Return how many bytes have to leave so that it fits, or is no fuller than it was."""
        over = waiting.bytes + request.body_bytes - int(self._max_bytes * share)
        return max(0, min(over, request.body_bytes))

    def use(self, waiting: Waiting) -> float:
        """Return how full the queue is, 0 to 1."""
        return waiting.size / self.max_requests if self.max_requests else 0.0


def queue_full(pool: str, why: str, retry_after: float) -> Overloaded:
    """Word that there is no place in the queue."""
    return Overloaded(f"pool {pool!r} is full: {why}; try again later", retry_after=retry_after)


def share_taken(pool: str, why: str, retry_after: float) -> QuotaExceeded:
    """Word that a tenant has its share of the queue."""
    text = f"{why}, its share of the queue of pool {pool!r}; try again later"
    return QuotaExceeded(text, retry_after=retry_after)


def too_long(pool: str, wait: float, retry_after: float) -> Overloaded:
    """Word that a request would wait for longer than it may."""
    return Overloaded(
        f"pool {pool!r} would let this wait for about {wait:.0f} s, more than its longest wait;"
        " try again later",
        code="expected_wait",
        retry_after=retry_after,
    )


def past_watermark(pool: str, why: str, retry_after: float) -> Overloaded:
    """Word that less is let in for now."""
    return Overloaded(
        f"pool {pool!r} lets less in: {why}; try again later",
        code="watermark",
        retry_after=retry_after,
    )


def too_late(pool: str, waited: float, retry_after: float) -> Overloaded:
    """Word that a request could not start within its longest wait."""
    return Overloaded(
        f"pool {pool!r} could not start this in {waited:.1f} s, more than its longest wait;"
        " try again later",
        code="longest_wait",
        retry_after=retry_after,
    )
