"""Ask an endpoint's control routes, with foreign errors translated in this one place.

The client is shared and its timeouts are its owner's. An error names the endpoint, the path and the
kind of failure, never its text: that of a header which cannot be sent has the endpoint's key in it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from forebay.policies.contracts import EngineRefused, EngineUnreachable

from .base import ModelCard
from .errors import read_body
from .loose import is_json, read_int, read_list, read_object, read_text

if TYPE_CHECKING:
    from forebay.policies.contracts import EngineFailed

    from .base import Target

MAX_ANSWER = 8 << 20
"""Bytes of one answer; a longer one is not what we asked for."""

ABSENT = frozenset((301, 302, 307, 308, 400, 404, 405, 501))
"""The endpoint does not have what was asked: another version, or a flag that is off."""


async def ask(http: httpx.AsyncClient, target: Target, path: str) -> bytes:
    """GET a path that an endpoint in order answers with 200.

    Raises EngineUnreachable when nothing answers, EngineRefused for any other answer.
    """
    status, body = await _get(http, target, path)
    if status != 200:
        raise _refusal(target, f"GET {path}", status, body)
    return body


async def ask_optional(http: httpx.AsyncClient, target: Target, *paths: str) -> list[bytes | None]:
    """GET paths at once that only add to what is known; None for each that is not answered 200.

    One that fails inside the engine must not take the endpoint out of rotation. At once, since each
    waits for the engine's event loop. Raises EngineUnreachable when one is not answered at all.
    """
    answers = await asyncio.gather(*(_get(http, target, path) for path in paths))
    return [body if status == 200 else None for status, body in answers]


async def ask_if_known(
    http: httpx.AsyncClient, target: Target, path: str, *, patience: float | None = None
) -> bytes | None:
    """GET a path that an endpoint may lack; None when it does. Raises as `ask` for the rest.

    `patience` in seconds is for an answer that is known to be slow.
    """
    status, body = await _get(http, target, path, patience=patience)
    if status in ABSENT:
        return None
    if status != 200:
        raise _refusal(target, f"GET {path}", status, body)
    return body


async def take_if_known(
    http: httpx.AsyncClient, target: Target, path: str, *, patience: float, most: int
) -> bytes | None:
    """POST to a path that hands over what it has, which an endpoint may lack. As `ask_if_known`.

    `most` in bytes is the longest answer that is read.
    """
    asked = f"POST {path}"
    status, body = await _request(http, target, asked, patience=patience, most=most)
    if status in ABSENT:
        return None
    if status != 200:
        raise _refusal(target, asked, status, body)
    return body


async def ask_json(http: httpx.AsyncClient, target: Target, path: str) -> bytes:
    """GET a path whose answer must be JSON. Raises EngineRefused when it is not."""
    body = await ask(http, target, path)
    if not is_json(body):
        raise EngineRefused(
            f"endpoint {target.name} answered GET {path} with something that is no JSON;"
            " check that its url is the engine's own",
            status=502,
        )
    return body


async def tell(http: httpx.AsyncClient, target: Target, path: str, content: bytes) -> None:
    """POST a JSON body and forget the answer. Never raises: it is an attempt, made in passing."""
    headers = {**target.headers, "content-type": "application/json"}
    try:
        async with http.stream("POST", target.url + path, content=content, headers=headers):
            pass
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        return


def read_models(body: bytes) -> tuple[ModelCard, ...]:
    """Read an OpenAI model list; cards without a name are left out."""
    cards: list[ModelCard] = []
    for item in read_list(read_object(body).get("data")):
        card = read_object(item)
        name = read_text(card.get("id"))
        if name is not None:
            cards.append(
                ModelCard(
                    name=name,
                    max_model_len=read_int(card.get("max_model_len")) or None,
                    parent=read_text(card.get("parent")),
                )
            )
    return tuple(cards)


async def _get(
    http: httpx.AsyncClient, target: Target, path: str, *, patience: float | None = None
) -> tuple[int, bytes]:
    return await _request(http, target, f"GET {path}", patience=patience)


async def _request(
    http: httpx.AsyncClient,
    target: Target,
    asked: str,
    *,
    patience: float | None = None,
    most: int = MAX_ANSWER,
) -> tuple[int, bytes]:
    method, _, path = asked.partition(" ")
    url = target.url + path
    timeout = http.timeout if patience is None else httpx.Timeout(patience)
    try:
        async with http.stream(method, url, headers=target.headers, timeout=timeout) as answer:
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > most:
                    raise EngineRefused(
                        f"endpoint {target.name} answered {asked} with more than {most >> 20} MiB",
                        status=502,
                    )
            return answer.status_code, bytes(body)
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError) as error:
        raise _translate(target, asked, error) from None


def _translate(target: Target, asked: str, error: Exception) -> EngineFailed:
    kind = type(error).__name__
    if isinstance(error, httpx.ProtocolError | httpx.DecodingError | httpx.TooManyRedirects):
        return EngineRefused(
            f"endpoint {target.name} answered {asked} with no valid HTTP: {kind}", status=502
        )
    if isinstance(error, httpx.InvalidURL | UnicodeError | httpx.UnsupportedProtocol):
        return EngineUnreachable(
            f"endpoint {target.name} cannot be asked: {kind}; check its url and key"
        )
    return EngineUnreachable(f"endpoint {target.name} did not answer {asked}: {kind}")


def _refusal(target: Target, asked: str, status: int, body: bytes) -> EngineRefused:
    said = read_body(status, body).message
    return EngineRefused(
        f"endpoint {target.name} answered {asked} with {status}: {said[:200]}", status=status
    )
