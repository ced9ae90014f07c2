"""Who is told of a caller while it is not known yet who will answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .messages import Guest, Responder


class StandIn:
    """The guest of a request that waits for something; a go-between to the real one after that."""

    __slots__ = ("_guest", "left")

    def __init__(self) -> None:
        self.left = False
        """The caller has left, so nobody need answer."""
        self._guest: Guest | None = None

    def give_way(self, guest: Guest | None, responder: Responder) -> None:
        """Tell the real guest what is told from now on; None: the request is answered already."""
        self._guest = guest
        if guest is not None and responder.slow:
            guest.caller_slow()

    def caller_left(self) -> None:
        """See messages.Guest."""
        self.left = True
        if self._guest is not None:
            self._guest.caller_left()

    def caller_slow(self) -> None:
        """See messages.Guest."""
        if self._guest is not None:
            self._guest.caller_slow()

    def caller_ready(self) -> None:
        """See messages.Guest."""
        if self._guest is not None:
            self._guest.caller_ready()
