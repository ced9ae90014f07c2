"""Which path of the embedded engine does what."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from . import sim_chat, sim_messages, sim_plain, sim_pooling, sim_responses, sim_speech
from .sim_job import Reply, SimError, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sim_engine import SimEngine
    from .sim_job import Job, Received

    Handler = Callable[[SimEngine, Received], Job | Reply]

logger = logging.getLogger(__name__)

_ROUTES: dict[str, dict[str, Handler]] = {
    "/health": {"GET": sim_plain.health},
    "/ping": {"GET": sim_plain.health, "POST": sim_plain.health},
    "/version": {"GET": sim_plain.version},
    "/load": {"GET": sim_plain.load},
    "/metrics": {"GET": sim_plain.metrics},
    "/tokenize": {"POST": sim_plain.tokenize},
    "/detokenize": {"POST": sim_plain.detokenize},
    "/v1/models": {"GET": sim_plain.models},
    "/v1/chat/completions": {"POST": sim_chat.chat},
    "/v1/completions": {"POST": sim_chat.completions},
    "/v1/embeddings": {"POST": sim_pooling.embeddings},
    "/v1/messages": {"POST": sim_messages.messages},
    "/v1/messages/count_tokens": {"POST": sim_messages.count_tokens},
    "/v1/responses": {"POST": sim_responses.create},
    "/v1/responses/{id}": {"GET": sim_responses.retrieve, "DELETE": sim_responses.delete},
    "/v1/responses/{id}/cancel": {"POST": sim_responses.cancel},
    "/v1/rerank": {"POST": sim_pooling.rerank},
    "/rerank": {"POST": sim_pooling.rerank},
    "/v2/rerank": {"POST": sim_pooling.rerank},
    "/v1/score": {"POST": sim_pooling.score},
    "/score": {"POST": sim_pooling.score},
    "/v1/audio/transcriptions": {"POST": sim_speech.transcribe},
}
_OPENAPI = msgspec.json.encode(
    {
        "openapi": "3.1.0",
        "info": {"title": "forebay engine sim", "version": sim_plain.VERSION},
        "paths": {
            path: {method.lower(): {"responses": {}} for method in methods}
            for path, methods in _ROUTES.items()
        },
    }
)


def answer(engine: SimEngine, received: Received) -> Job | Reply:
    """Plan the answer to one request; what the engine refuses is a reply too."""
    if received.path == "/openapi.json":
        return Reply(_OPENAPI)
    methods = _ROUTES.get(received.path) or _ROUTES.get(_template(received.path))
    if methods is None:
        return Reply(b'{"detail":"Not Found"}', 404)
    handler = methods.get(received.method)
    if handler is None:
        return Reply(b'{"detail":"Method Not Allowed"}', 405)
    try:
        return handler(engine, received)
    except SimError as error:
        dialect = sim_messages if received.path.startswith("/v1/messages") else None
        return Reply(dialect.error_body(error) if dialect else error_body(error), error.status)
    except Exception as error:  # noqa: BLE001 - a server answers whatever happens
        # Its message, and so its traceback, may hold what the caller sent.
        logger.error("embedded engine failed", extra={"error": type(error).__name__})  # noqa: TRY400 - see above
        failed = SimError("internal error", status=500, kind="InternalServerError")
        return Reply(error_body(failed), 500)


def _template(path: str) -> str:
    """Return the path with its id left open."""
    start = "/v1/responses/"
    if not path.startswith(start):
        return path
    response_id, slash, rest = path.removeprefix(start).partition("/")
    return f"{start}{{id}}{slash}{rest}" if response_id else path
