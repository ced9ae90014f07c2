"""The routes that exist: which methods each takes, and what each counts as."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from forebay.policies.contracts import InvalidRequest, Route

from .intake import shown
from .telemetry.codes import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .messages import Message

ROUTES: dict[str, Route] = {route.value: route for route in Route}
"""Plain routes: a POST each, by their path."""
_STORED = Route.RESPONSES.value + "/"
_STORED_METHODS = {"": ("GET", "DELETE"), "cancel": ("POST",), "input_items": ("GET",)}


def check(method: str, path: str, local: Callable[[str], tuple[str, ...] | None]) -> bool:
    """Return whether a request needs a key; `local` tells the methods of what we answer ourselves.

    Raises InvalidRequest for a path that is not there and for a method that it does not take.
    """
    if path in ROUTES:
        if method != "POST":
            raise _wrong_method(path, ("POST",))
        return True
    methods = local(path) if stored_name(path) is None else _STORED_METHODS.get(_action(path))
    if methods is None:
        raise InvalidRequest(f"there is no route {shown(path)}", status=404, code="not_found")
    if method not in methods:
        raise _wrong_method(path, methods)
    return path.startswith("/v1/")


def stored_name(path: str) -> str | None:
    """Return the stored response that a path is about; None where it is about none."""
    if not path.startswith(_STORED):
        return None
    return path.removeprefix(_STORED).partition("/")[0]


def _action(path: str) -> str:
    return path.removeprefix(_STORED).partition("/")[2]


def template(path: str) -> str:
    """Return the route that a path counts as: never a caller's own words, which have no end."""
    if path in ROUTES:
        return path
    if stored_name(path) is None:
        return OTHER
    _, slash, action = path.removeprefix(_STORED).partition("/")
    return f"{_STORED}{{id}}{slash}{action}" if action in _STORED_METHODS else OTHER


def plain_target(message: Message) -> str:
    """Write a target anew, in origin form and visible ASCII, however the caller wrote it."""
    query = quote(message.query, safe="!$%&'()*+,-./:;=?@_~")
    return quote(message.path) + (f"?{query}" if query else "")


def _wrong_method(path: str, methods: Iterable[str]) -> InvalidRequest:
    allowed = ", ".join(methods)
    text = f"{shown(path)} takes {allowed}"
    error = InvalidRequest(text, status=405, code="method_not_allowed")
    error.headers = ((b"allow", allowed.encode()),)
    return error
