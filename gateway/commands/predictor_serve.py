"""`forebay predictor serve`: one predictor for a fleet of gateways, by HTTP.

The other end of `adapters.predictor_http`. One thread predicts, the loop only reads and writes.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import structs

from forebay.policies.contracts import Route  # noqa: TC001 - msgspec reads the annotations
from forebay.scheduler.length import LengthFeatures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forebay.scheduler.length import LengthPredictor

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

_MOST_BYTES = 8 << 20
_MOST_FEATURES = 256
_MOST = 1 << 30
_Number = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _Asked(msgspec.Struct):
    """`LengthFeatures` as they come, each within what it can be."""

    route: Route
    model: str
    tenant: str
    prompt_tokens: _Number
    max_tokens: _Number | None = None
    answers: _Number = 1
    text: str = ""
    template: str = ""
    turns: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] = 1
    tools: _Number = 0
    schema: bool = False
    stop: bool = False
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    hour: Annotated[int, msgspec.Meta(ge=0, le=23)] | None = None


class _Ask(msgspec.Struct):
    features: Annotated[list[_Asked], msgspec.Meta(max_length=_MOST_FEATURES)]


_asked = msgspec.json.Decoder(_Ask).decode


def answer(predictor: LengthPredictor, body: bytes) -> tuple[int, bytes]:
    """Return status and body for a request's body."""
    try:
        told = _asked(body).features
    except (msgspec.DecodeError, RecursionError) as error:
        return 400, msgspec.json.encode({"error": f"no list of 'features' in the body: {error}"})
    features = [LengthFeatures(**structs.asdict(each)) for each in told]
    said = [each._asdict() for each in predictor.predict(features)] if features else []
    return 200, msgspec.json.encode({"predictions": said})


class Server:
    """An ASGI application that answers each POST with predictions."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self._predictor = predictor
        self._thread = ThreadPoolExecutor(1)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        body = await _read(receive)
        if scope["method"] != "POST":
            status, said = 405, b'{"error": "send features by POST"}'
        elif body is None:
            status, said = 413, b'{"error": "the body is too long"}'
        else:
            loop = asyncio.get_running_loop()
            status, said = await loop.run_in_executor(self._thread, answer, self._predictor, body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})


async def _read(receive: Receive) -> bytes | None:
    """Return the whole body; None where it is too long."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        parts.append(message.get("body", b""))
        if size > _MOST_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)
