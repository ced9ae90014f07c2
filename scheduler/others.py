"""What an event at a dispatcher did to others than the request that it was about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.policies.contracts import Placement, Rejected, Request


class Others:
    """What an event did to others than the request that it was about."""

    __slots__ = ("expired", "recalled", "refused", "started")

    def __init__(self) -> None:
        self.recalled: list[Placement] = []
        """Called back; stop them at their engines. Their requests wait again."""
        self.refused: list[tuple[Request, Rejected]] = []
        """Wait no longer: displaced, or too late to be started."""
        self.expired: list[Request] = []
        """Wait no longer: their deadlines have come."""
        self.started: list[Placement] = []
        """Placed beside what the event returned."""
