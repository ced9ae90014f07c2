"""Which placements may still be called back for a request of a higher class.

A placement may be called back while it is a stream of a lower class that has sent no byte: a whole
answer shows nothing until its end, so calling one back could throw all of it away. The youngest of
the lowest class goes first, since it has cost the least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from forebay.policies.contracts import Placement

_MOST_KNOWN = 4096
_MOST_LOOKS = 64
"""Placements looked at for one arrival: a pool full of exhausted ones is not gone through."""


class Recalls:
    """Keeps count of what may be called back, and how often each request was."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, dict[int, Placement]] = {}
        self._times: dict[str, int] = {}

    def placed(self, placement: Placement) -> None:
        """Take in a placement that has sent no byte."""
        request = placement.request
        if not request.stream:
            return
        if self._times and self._times.get(request.id, 0) >= self._most:
            return
        rank = self._open.get(request.sla_rank)
        if rank is None:
            rank = self._open[request.sla_rank] = {}
        rank[id(placement)] = placement

    def begun(self, placement: Placement) -> None:
        """Take in that its first byte has come, or that it is over."""
        rank = self._open.get(placement.request.sla_rank)
        if rank is not None:
            rank.pop(id(placement), None)

    def forget(self, request_id: str) -> None:
        """Forget a request that is over."""
        if self._times:
            self._times.pop(request_id, None)

    def victim(self, rank: int, endpoints: Container[str]) -> Placement | None:
        """Return the placement to call back for a request of that rank, on one of the endpoints."""
        looks = 0
        for lower in sorted(known for known in self._open if known < rank):
            for placement in reversed(self._open[lower].values()):
                if placement.endpoint in endpoints:
                    return placement
                looks += 1
                if looks >= _MOST_LOOKS:
                    return None
        return None

    def call_back(self, placement: Placement) -> None:
        """Take in that a placement is called back."""
        self.begun(placement)
        times = self._times
        times[placement.request.id] = times.get(placement.request.id, 0) + 1
        if len(times) > _MOST_KNOWN:  # those whose last try failed are never told as over
            del times[next(iter(times))]
