"""The headers of an answer, those for a tenant that debugs included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .failing import retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.adapters.base import Headers
    from forebay.policies.contracts import ForebayError, Outcome

    from .intake import Inbound

_NO_CACHE = (b"cache-control", b"no-cache")


def answer_head(
    inbound: Inbound, outcome: Outcome, content_type: bytes, error: ForebayError | None
) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer but for its length."""
    head = [(b"content-type", content_type), (b"x-request-id", inbound.shown_id.encode())]
    if content_type.startswith(b"text/event-stream"):
        head.append(_NO_CACHE)
    if error is not None:
        head += retry_after(error)
    if inbound.tenant.debug_headers:
        head += _debug_headers(inbound, outcome)
    return head


def _debug_headers(inbound: Inbound, outcome: Outcome) -> Iterator[tuple[bytes, bytes]]:
    yield b"x-forebay-pool", outcome.pool.encode()
    if outcome.endpoint:
        yield b"x-forebay-endpoint", outcome.endpoint.encode()
    if outcome.placed is not None:
        yield b"x-forebay-queue-ms", b"%.1f" % ((outcome.placed - outcome.received) * 1000)
    if inbound.pool.arrangement.predicts:
        yield b"x-forebay-predicted-tokens", b"%d" % outcome.predicted_tokens
    prefix = inbound.pool.prefix
    hit = None if prefix is None else prefix.expected(inbound.request.id)
    if hit is not None:
        yield b"x-forebay-prefix-hit-tokens", b"%d" % hit
    if inbound.trial is not None:
        yield b"x-forebay-arm", f"{inbound.trial.trial.name}/{inbound.trial.arm}".encode()
    if outcome.moved:
        yield b"x-forebay-moved", outcome.moved.encode()


def media_type(headers: Headers) -> bytes:
    """Return an answer's `Content-Type`; where the engine says none, that it is just bytes."""
    for name, value in headers:
        if name == b"content-type":
            return value
    return b"application/octet-stream"
