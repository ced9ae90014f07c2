"""A long body is read step by step, and whoever has something to do in between does it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay.gateway import wire
from forebay.gateway.long_reading import LongReading
from forebay.gateway.media import Media, media_of
from forebay.gateway.messages import Message
from forebay.gateway.prefix_text import prompt_text
from forebay.policies.contracts import ForebayError, Route

if TYPE_CHECKING:
    from forebay.gateway.intake import AnyBody
    from forebay.gateway.messages import Guest, Responder

PICTURE = "data:image/png;base64," + "iVBOR" * 200_000
PARTS = [{"type": "text", "text": "hm?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": PARTS}]}).encode()
ANSWERED = "answered"


class Caller:
    """A responder, as much of it as is asked."""

    slow = False
    peer = "test"


class App:
    """Notes what it is asked to answer, and in which turn of the loop."""

    def __init__(self, *, by_text: bool = True, broken: bool = False) -> None:
        self.by_text = by_text
        self.broken = broken
        self.told: list[tuple[int, str]] = []
        self.turns = 0
        self.read: AnyBody | None = None

    def wants_text(self, route: Route, body: wire.Body) -> bool:  # noqa: ARG002 - the protocol's signature
        if self.broken:
            raise RuntimeError
        return self.by_text

    def whole(self, message: Message, responder: Responder) -> Guest | None:  # noqa: ARG002 - likewise
        self.told.append((self.turns, ANSWERED))
        self.read = message.read
        return None

    def turn_away(self, error: ForebayError, message: Message, responder: Responder) -> None:  # noqa: ARG002 - likewise
        self.told.append((self.turns, error.message))

    def failed(self, error: Exception, message: Message, responder: Responder) -> None:  # noqa: ARG002 - likewise
        self.told.append((self.turns, type(error).__name__))

    async def count_turns(self, number: int) -> None:
        for self.turns in range(number):
            await asyncio.sleep(0)


def message_of(body: bytes) -> Message:
    message = Message(0.0)
    message.body = body
    return message


def read(
    app: App, message: Message, *, leave_after: int | None = None, route: Route = Route.CHAT
) -> App:
    async def scenario() -> None:
        guest = LongReading(app, message, cast("Responder", Caller()), route).begin()
        if leave_after is not None:
            asyncio.get_running_loop().call_soon(guest.caller_left)
        await app.count_turns(6)

    asyncio.run(scenario())
    return app


def test_each_step_is_a_turn_of_the_loop_and_what_it_found_is_kept():
    app = read(App(), message_of(BODY))
    assert app.told == [(3, ANSWERED)]
    body = app.read
    assert isinstance(body, wire.Body)
    found = body.found
    assert found is not None
    assert (found.media, body.raw) == (Media(1, len(json.dumps(PARTS[1]["image_url"]))), BODY)
    assert media_of(body, Route.CHAT) is found.media
    text = found.prompt
    assert prompt_text(Route.CHAT, body) is text
    assert (found.prompt, prompt_text(Route.CHAT, body)) == (None, text)


def test_a_prompt_whose_text_nobody_wants_is_not_written():
    app = read(App(by_text=False), message_of(BODY))
    assert app.told == [(2, ANSWERED)]
    assert cast("Any", app.read).found.prompt is None


def test_it_is_held_no_longer_than_until_the_call_is_made():
    message = message_of(BODY)
    assert (read(App(), message).told, message.read) == ([(3, ANSWERED)], None)


def test_a_long_upload_is_read_as_a_form():
    part = 'content-disposition: form-data; name="%s"\r\n\r\n%s'
    parts = [part % ("model", "m"), part % ('file"; filename="a.wav', PICTURE)]
    message = message_of("".join(f"--x\r\n{each}\r\n" for each in parts).encode() + b"--x--\r\n")
    message.headers[b"content-type"] = b"multipart/form-data; boundary=x"
    form = read(App(), message, route=Route.TRANSCRIPTIONS).read
    assert form is not None
    assert media_of(form, Route.TRANSCRIPTIONS) == Media(1, len(PICTURE))


def test_whoever_left_is_not_read_on():
    message = message_of(BODY)
    assert read(App(), message, leave_after=1).told == []
    assert message.read is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (BODY[:-1], "the body is not valid JSON; NaN, Infinity and lone surrogates are not either"),
        (BODY.replace(b'"hm?"', b"1e999"), "the value of 'messages' cannot be read"),
    ],
    ids=["no JSON", "no number"],
)
def test_what_is_wrong_with_it_is_told(body: bytes, said: str):
    assert [text for _, text in read(App(), message_of(body)).told] == [said]


def test_a_fault_of_our_own_is_answered_too():
    assert read(App(broken=True), message_of(BODY)).told == [(2, "RuntimeError")]
