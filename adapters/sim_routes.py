"""Which path of the embedded engine does what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sim_chat import chat, completions
from .sim_job import Job, Reply, SimError, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sim_engine import SimEngine
    from .sim_job import Received

_ROUTES: dict[tuple[str, str], Callable[[SimEngine, Received], Job | Reply]] = {
    ("POST", "/v1/chat/completions"): chat,
    ("POST", "/v1/completions"): completions,
}
_PATHS = {path for _, path in _ROUTES}


def answer(engine: SimEngine, received: Received) -> Job | Reply:
    """Plan the answer to one request; what the engine refuses is a reply too."""
    handler = _ROUTES.get((received.method, received.path))
    if handler is None:
        if received.path in _PATHS:
            return Reply(b'{"detail":"Method Not Allowed"}', 405)
        return Reply(b'{"detail":"Not Found"}', 404)
    try:
        return handler(engine, received)
    except SimError as error:
        return Reply(error_body(error), error.status)
