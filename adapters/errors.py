"""Read error answers of every shape that engines send.

Engines disagree, and each with itself: OpenAI's nested `{"error": {...}}`, the flat
`{"object": "error", "message": ...}`, a string under `error`, FastAPI's `{"detail": ...}`, HTML of
a proxy, plain text, nothing. `read_body` makes one thing of them; `judge` says what a status means
for the endpoint's health. What only one engine says is in that engine's adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import EngineError, Verdict
from .loose import read_int, read_list, read_object, read_text

if TYPE_CHECKING:
    import msgspec

    from .loose import Members

MAX_MESSAGE = 4096
"""Characters of an engine's message that are passed on."""
MAX_BODY = 1 << 20
"""Bytes of an error that are read as JSON; a longer one is no error message."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_FULL = frozenset((408, 429, 503, 529))
_NO_ROUTE = frozenset((405, 501))
_MISCONFIGURED = frozenset((401, 403))


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error answer says, whatever its shape."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None
    nested: bool = False
    shaped: bool = False
    """The engine's own handler wrote it, not its web framework, a proxy, or nobody."""


def read_error(status: int, body: bytes) -> EngineError:
    """Read an error answer by what all engines share; never raises."""
    said = read_body(status, body)
    return error_of(judge(status, said), said)


def error_of(verdict: Verdict, said: ErrorBody) -> EngineError:
    """Join what was said with what it means."""
    return EngineError(
        verdict=verdict,
        message=said.message,
        type=said.type,
        code=said.code,
        param=said.param,
        nested=said.nested,
    )


def judge(status: int, said: ErrorBody) -> Verdict:
    """Say what an error answer means for the health of its endpoint."""
    if status in _FULL:
        return Verdict.FULL
    if status == 404:
        return judge_missing(said)
    if status in _NO_ROUTE:
        return Verdict.MISSING_ROUTE
    if status in _MISCONFIGURED or 300 <= status < 400:
        return Verdict.MISCONFIGURED
    if 400 <= status < 500:
        return Verdict.NEUTRAL
    return Verdict.BROKEN


def judge_missing(said: ErrorBody) -> Verdict:
    """Tell what a 404 is about: the route, the model, or a thing that the caller named.

    Only how a message begins counts: further on it may quote the caller, who must not be able to
    put an endpoint out of rotation by asking for a response called `the model`.
    """
    text = said.message.lower()
    if not said.shaped or text.startswith(("invalid url", "unknown url", "file not found")):
        return Verdict.MISSING_ROUTE
    about_model = said.param == "model" or said.code == "model_not_found"
    if about_model or text.startswith(("the model ", "model ")):
        return Verdict.MISCONFIGURED
    return Verdict.NEUTRAL


def read_body(status: int, body: bytes) -> ErrorBody:
    """Read the body of an error answer; never raises, and always has a message.

    What an engine says of the key that it refuses may quote it, and so is not repeated.
    """
    said = _read_any(status, body)
    if status in _MISCONFIGURED:
        return ErrorBody(f"the engine refuses the endpoint's key ({status})", said.type)
    return said


def _read_any(status: int, body: bytes) -> ErrorBody:
    members = read_object(body) if len(body) <= MAX_BODY else {}
    inner = read_object(members.get("error"))
    if inner:
        return _read_members(status, inner, nested=read_text(inner.get("message")) is not None)
    for name in ("error", "message"):
        if read_text(members.get(name)) is not None:
            return _read_members(status, {"message": members[name], **members}, nested=False)
    if "detail" in members:
        return ErrorBody(_clip(_detail(members["detail"]), status), _type(status))
    return ErrorBody(_plain(status, body), _type(status))


def _read_members(status: int, members: Members, *, nested: bool) -> ErrorBody:
    return ErrorBody(
        message=_clip(read_text(members.get("message")), status),
        type=read_text(members.get("type")) or _type(status),
        code=_code(status, members.get("code")),
        param=read_text(members.get("param")),
        nested=nested,
        shaped=True,
    )


def _code(status: int, raw: msgspec.Raw | None) -> str | None:
    # OpenAI's codes are words; a number that repeats the status says nothing.
    number = read_int(raw)
    if number is None:
        return read_text(raw)
    return None if number == status else str(number)


def _detail(raw: msgspec.Raw) -> str | None:
    # FastAPI's: a text, or a list of faults with their places.
    faults: list[str] = []
    for item in read_list(raw):
        fault = read_object(item)
        place = ".".join(
            part for step in read_list(fault.get("loc")) if (part := _step(step)) is not None
        )
        said = read_text(fault.get("msg"))
        if said is not None:
            faults.append(f"{place}: {said}" if place else said)
    return "; ".join(faults) or read_text(raw)


def _step(raw: msgspec.Raw) -> str | None:
    number = read_int(raw)
    return read_text(raw) if number is None else str(number)


def _plain(status: int, body: bytes) -> str:
    # Plain text as it is. A page for people, or JSON of an unknown shape, is not shown.
    start = body[:MAX_MESSAGE].lstrip()
    if start.startswith((b"<", b"{", b"[")):
        return _nothing(status)
    text = start.decode("utf-8", "replace")
    return _clip(text if text.isprintable() or "\n" in text else None, status)


def _clip(text: str | None, status: int) -> str:
    text = text.strip()[:MAX_MESSAGE] if text else ""
    return text or _nothing(status)


def _nothing(status: int) -> str:
    return f"the engine answered {status} without a message"


def _type(status: int) -> str:
    default = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return _TYPES.get(status, default)
