"""Asks a running gateway's admin port, and says in plain words why it could not."""

from __future__ import annotations

import os
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from forebay.policies.contracts import ForebayError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Mapping

    import httpx

KEY = "FOREBAY_ADMIN_KEY"
"""Environment variable that holds the admin key, where there is one."""
_URL = "http://127.0.0.1:8081"
_ADDRESS = re.compile(r"https?://[^\s/]")
_HINTS: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: f"; {KEY} must hold that of server.admin",
    HTTPStatus.FORBIDDEN: f"; without a key only its own machine may ask; set one, and {KEY}",
}


def add_address(parser: ArgumentParser) -> None:
    """Declare where the admin port is."""
    parser.add_argument("--admin", metavar="URL", default=_URL, help="the admin port (%(default)s)")


def ask(method: str, admin: str, path: str, *, params: Mapping[str, str] | None = None) -> Any:
    """Return the JSON of the admin port's answer to `/admin/v1{path}`.

    Raises ForebayError unless it is one, with status 200.
    """
    import httpx

    if not _ADDRESS.match(admin):
        raise ForebayError(f"--admin '{admin}' is no http address; write http://HOST:PORT")
    key = _key()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{admin.rstrip('/')}/admin/v1{path}"
    try:
        answer = httpx.request(
            method, url, params=params, headers=headers, timeout=30.0, trust_env=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ForebayError(f"{admin}: cannot be asked: {_unreachable(error)}") from error
    if answer.status_code != HTTPStatus.OK:
        raise ForebayError(f"{admin}: answered {answer.status_code}: {_why(answer)}")
    try:
        return answer.json()
    except ValueError:
        raise ForebayError(f"{admin}: answered something else; is this the admin port?") from None


def _key() -> str:
    """Return the admin key, empty where there is none; an error must not repeat it."""
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ForebayError(f"{KEY} holds signs that no key has; set it to that of server.admin")
    return key


def _unreachable(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.ConnectError):
        return (
            f"{why_unreachable(error)}; is the gateway running, with an admin port there "
            "(server.admin.port, 8081 unless set)? --admin URL names another"
        )
    return why_unreachable(error)


def why_unreachable(error: Exception) -> str:
    """Say why an HTTP call failed: the system's own words, or what kind of failure it was."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return str(error) or words


def _why(answer: httpx.Response) -> str:
    try:
        told = answer.json()["error"]
        reason, elsewhere = str(told["message"]), told.get("code") == "not_found"
    except (ValueError, KeyError, TypeError, AttributeError):
        reason, elsewhere = "no reason told", True
    if elsewhere and answer.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        return f"{reason}; is this the admin port (server.admin.port), not the callers'?"
    return reason + _HINTS.get(answer.status_code, "")
