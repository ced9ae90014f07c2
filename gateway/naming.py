"""A request whose prompt is being cut into tokens: it is placed when they are there, or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .standing_in import StandIn

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
    """A request that waits for the tokens of its prompt."""

    __slots__ = ("_host", "_inbound", "_message", "_responder", "_stand_in")

    def __init__(
        self, host: Host, inbound: Inbound, message: Message, responder: Responder
    ) -> None:
        self._host = host
        self._inbound = inbound
        self._message = message
        self._responder = responder
        self._stand_in = StandIn()

    def begin(self, cutter: Cutter) -> Guest | None:
        """Have the prompt cut; where that cannot be, go on at once."""
        inbound = self._inbound
        if cutter.submit(inbound.request.route, inbound.body.raw, self._cut):
            return self._stand_in
        return self._host.named(inbound, None, self._message, self._responder)

    def _cut(self, tokens: bytes | None) -> None:
        if self._stand_in.left:
            return
        responder = self._responder
        guest = self._host.named(self._inbound, tokens, self._message, responder)
        self._stand_in.give_way(guest, responder)
