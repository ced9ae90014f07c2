"""Edits of a caller's top-level members that several adapters make.

Every function here runs once a request: an ordinary one, with nothing to take out or put in, costs
a few dictionary look-ups and no copy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from forebay.policies.contracts import Route

from .loose import read_object

if TYPE_CHECKING:
    from .base import Call

USAGE_ROUTES = frozenset((Route.CHAT, Route.COMPLETIONS))
"""Routes whose streams tell usage only when asked; the others always do."""

GENERATING = frozenset((Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.MESSAGES))

ASK_USAGE = b'{"include_usage":true}'


@lru_cache(maxsize=4096)
def quote(text: str) -> bytes:
    """Write a string as JSON; for names and salts, of which there are few."""
    return msgspec.json.encode(text)


def set_model(call: Call) -> dict[str, bytes]:
    """Return the edits of the model's name: none when the caller's is the engine's already.

    A multipart form has no members here, and needs its model all the same.
    """
    if not call.model or (not call.members and call.route is not Route.TRANSCRIPTIONS):
        return {}
    name = quote(call.model)
    sent = call.members.get("model")
    return {} if sent is not None and bytes(sent) == name else {"model": name}


def drop_control(call: Call, control: frozenset[str], edits: dict[str, bytes]) -> tuple[str, ...]:
    """Name the control fields to take out: those the caller sent and the pool does not allow.

    What `edits` replaces is not named. A multipart form hides its fields from us, so all are named.
    """
    members = call.members
    if not members and call.route is Route.TRANSCRIPTIONS:
        return tuple(sorted(control.difference(call.allow, edits)))
    if control.isdisjoint(members):
        return ()
    return tuple(
        name for name in members if name in control and name not in call.allow and name not in edits
    )


def ask_usage(call: Call, edits: dict[str, bytes], *, continuous: bool = False) -> None:
    """Have the stream end with its usage, keeping the caller's other stream options.

    `continuous_usage_stats` is taken out, unless it is said to work without `include_usage` too:
    there it did nothing, and with ours it would put into each chunk what the caller did not ask
    for. Options of the wrong type stay, for the engine to refuse.
    """
    if not call.meter_usage or call.route not in USAGE_ROUTES:
        return
    sent = call.members.get("stream_options")
    if sent is None or bytes(sent) == b"null":
        edits["stream_options"] = ASK_USAGE
        return
    if not bytes(sent).startswith(b"{"):
        return
    options = read_object(sent)
    if bytes(options.get("include_usage", b"")) == b"true":
        return
    if not continuous:
        options.pop("continuous_usage_stats", None)
    options["include_usage"] = msgspec.Raw(b"true")
    edits["stream_options"] = msgspec.json.encode(options)
