"""A long body is read in several turns of the event loop, so that others need not wait for it all.

Each step goes once or twice over the whole body, at some two milliseconds for ten megabytes; what
it finds is kept with the body until the call is made. An ordinary body is read at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from forebay.policies.contracts import Rejected

from . import intake, wire
from .media import media_of
from .prefix_text import prompt_text
from .standing_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.policies.contracts import ForebayError, Route

    from .media import Media
    from .messages import Guest, Message, Responder


class Host(Protocol):
    """What a reading asks of the application."""

    def wants_text(self, route: Route, body: wire.Body) -> bool:
        """Tell whether the prompt of a body will be wanted as a text."""
        ...

    def whole(self, message: Message, responder: Responder) -> Guest | None:
        """Answer a request whose body is read."""
        ...

    def turn_away(self, error: ForebayError, message: Message, responder: Responder) -> None:
        """Answer a request that cannot be one."""
        ...

    def failed(self, error: Exception, message: Message, responder: Responder) -> None:
        """Answer a request that a fault of our own keeps from being read."""
        ...


class Found:
    """What was found in a long body, until it is asked for."""

    __slots__ = ("media", "prompt")

    def __init__(self, media: Media) -> None:
        self.media = media
        """What it brings beside text."""
        self.prompt: bytes | None = None
        """Its prompt as one text, where that will be wanted."""


class LongReading:
    """One request that is being read."""

    __slots__ = ("_host", "_loop", "_message", "_responder", "_stand_in", "_steps")

    def __init__(self, host: Host, message: Message, responder: Responder, route: Route) -> None:
        self._host = host
        self._message = message
        self._responder = responder
        self._stand_in = StandIn()
        self._loop = asyncio.get_running_loop()
        self._steps = self._read(message, route)

    def begin(self) -> Guest:
        """Read from the next turn of the loop on."""
        self._loop.call_soon(self._turn)
        return self._stand_in

    def _read(self, message: Message, route: Route) -> Iterator[None]:
        body = intake.read_body(message, route)
        yield
        if isinstance(body, wire.Body):
            found = Found(media_of(body, route))
            yield
            if self._host.wants_text(route, body):
                found.prompt = prompt_text(route, body)
                yield
            body.found = found
        message.read = body

    def _turn(self) -> None:
        """Take a step, and the last one with what is left of the request's way."""
        if self._stand_in.left:
            return
        try:
            next(self._steps)
        except StopIteration:
            guest = self._host.whole(self._message, self._responder)
            self._message.read = None  # else it would be held for as long as the answer streams
            self._stand_in.give_way(guest, self._responder)
        except Rejected as error:
            self._host.turn_away(error, self._message, self._responder)
        except Exception as error:  # noqa: BLE001 - nobody else would answer
            self._host.failed(error, self._message, self._responder)
        else:
            self._loop.call_soon(self._turn)
