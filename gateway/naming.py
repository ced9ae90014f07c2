"""A request whose prompt is being cut into tokens: it is placed when they are there, or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .intake import Inbound
    from .messages import Guest, Message, Responder
    from .prompts.service import Cutter


class Host(Protocol):
    """What a waiting request asks of the application."""

    def named(
        self, inbound: Inbound, tokens: bytes | None, message: Message, responder: Responder
    ) -> Guest | None:
        """Go on with a request whose tokens are known, or will not be."""
        ...


class Naming:
    """Waits as a request's guest, and is a go-between to the real one from then on."""

    __slots__ = ("_guest", "_host", "_inbound", "_left", "_message", "_responder")

    def __init__(
        self, host: Host, inbound: Inbound, message: Message, responder: Responder
    ) -> None:
        self._host = host
        self._inbound = inbound
        self._message = message
        self._responder = responder
        self._guest: Guest | None = None
        self._left = False

    def begin(self, cutter: Cutter) -> Guest | None:
        """Have the prompt cut; where that cannot be, go on at once."""
        inbound = self._inbound
        if cutter.submit(inbound.request.route, inbound.body.raw, self._cut):
            return self
        return self._host.named(inbound, None, self._message, self._responder)

    def _cut(self, tokens: bytes | None) -> None:
        if self._left:
            return
        responder = self._responder
        self._guest = self._host.named(self._inbound, tokens, self._message, responder)
        if self._guest is not None and responder.slow:
            self._guest.caller_slow()

    def caller_left(self) -> None:
        """See messages.Guest."""
        self._left = True
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
