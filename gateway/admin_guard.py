"""Who may ask the admin port.

With a key, who shows it as a bearer token; without one, a peer on this machine that calls us by a
loopback name, which keeps out web pages that had their own name point here. And who changes
something must not do it from another site's page.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz"})
"""Paths that need no key."""


class Failure(BaseModel):
    """What went wrong, as on the callers' port."""

    message: str = Field(description="what, which and what to do")
    type: str
    code: str | None


class Failed(BaseModel):
    """The answer to what failed."""

    error: Failure


REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Failed, "description": "the admin key is missing or wrong"},
    403: {"model": Failed, "description": "no key is set, and another machine or page asks"},
}
"""What any path that is not open may answer, for the description."""


def error_answer(status: int, message: str, kind: str) -> JSONResponse:
    """Say an error in the shape that the data plane's have."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    said = {"error": {"message": message, "type": kind, "code": None}}
    return JSONResponse(said, status, headers)


class Guard:
    """Lets only those through who may ask."""

    def __init__(self, app: ASGIApp, *, key: str | None) -> None:
        self._app = app
        self._digest = None if key is None else sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with an error."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._digest is None:
            if not _is_local(scope, headers):
                message = "only this machine may ask; set server.admin.key to allow others"
                return error_answer(403, message, "permission_error")
            if _is_foreign_change(scope, headers):
                message = "another site's page may change nothing here; set server.admin.key"
                return error_answer(403, message, "permission_error")
            _name(scope, "loopback")
            return None
        if scope["path"] in OPEN or self._is_key(headers.get(b"authorization", b"")):
            _name(scope, f"key:{self._digest.hex()[:12]}")
            return None
        return error_answer(401, "the admin key is missing or wrong", "authentication_error")

    def _is_key(self, header: bytes) -> bool:
        scheme, _, token = header.partition(b" ")
        shown = sha256(token.strip()).digest()
        return hmac.compare_digest(shown, self._digest or b"") and scheme.lower() == b"bearer"


def _name(scope: Scope, who: str) -> None:
    """Note who asks, for whoever writes down what was changed."""
    scope.setdefault("state", {})["who"] = who


def _is_foreign_change(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser sends this for another site's page, which could not do so with a key."""
    if scope["method"] in ("GET", "HEAD"):
        return False
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b"")


def _is_local(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the peer is this machine, and calls us so: a name that a stranger owns may not."""
    peer: tuple[str, Any] | None = scope.get("client")
    if peer is None or not _is_loopback(peer[0]):
        return False
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback
