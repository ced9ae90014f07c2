"""What the gateway answers by itself: models, health, readiness, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

import msgspec

from forebay.policies.contracts import InvalidRequest

from .intake import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.gateway.config.sections import Tenant

    from .messages import Guest, Message, Responder
    from .pools import Pool
    from .telemetry.snapshot import Snapshot

_JSON = [(b"content-type", b"application/json")]
_MODELS = "/v1/models"
_READ = ("GET", "HEAD")


class Served(Protocol):
    """What is known of the pools that are served now."""

    pools: dict[str, Pool]


class Scrape:
    """A scrape that is being rendered in another thread."""

    def __init__(self, responder: Responder) -> None:
        self._responder: Responder | None = responder

    def rendered(self, content_type: str, body: bytes) -> None:
        """Answer, unless the scraper has left."""
        responder, self._responder = self._responder, None
        if responder is not None:
            responder.send(200, [(b"content-type", content_type.encode())], body)

    def failed(self) -> None:
        """Answer that it cannot be rendered; the log says why."""
        responder, self._responder = self._responder, None
        if responder is not None:
            responder.send(500, _JSON, b'{"error":{"message":"metrics cannot be rendered"}}')

    def caller_left(self) -> None:
        """See messages.Guest."""
        self._responder = None

    def caller_slow(self) -> None:
        """See messages.Guest."""

    def caller_ready(self) -> None:
        """See messages.Guest."""


class LocalAnswers:
    """Routes that no engine is asked for."""

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        scrape: Callable[[str, Scrape], None] | None,
        created: int,
    ) -> None:
        """`scrape` renders metrics elsewhere and answers; None where they have another address."""
        self._snapshot = snapshot
        self._scrape = scrape
        self._created = created

    def methods(self, path: str) -> tuple[str, ...] | None:
        """Return the methods that a path takes; None when it is none of ours."""
        if path in ("/healthz", "/readyz", _MODELS) or path.startswith(_MODELS + "/"):
            return _READ
        return _READ if path == "/metrics" and self._scrape is not None else None

    def answer(
        self, message: Message, responder: Responder, tenant: Tenant, served: Served
    ) -> Guest | None:
        """Answer a message. Raises InvalidRequest for a model that is not there."""
        path = message.path
        if path == "/metrics" and self._scrape is not None:
            scrape = Scrape(responder)
            self._scrape(message.headers.get(b"accept", b"").decode("latin-1"), scrape)
            return scrape
        if path == "/healthz":
            responder.send(200, _JSON, b'{"status":"ok"}')
        elif path == "/readyz":
            self._ready(message, responder)
        elif path == _MODELS:
            cards = [self._card(name) for name in _names(served, tenant)]
            _send(responder, {"object": "list", "data": cards})
        else:
            name = path.removeprefix(_MODELS + "/")
            if name not in _names(served, tenant):
                raise InvalidRequest(
                    f"there is no model '{shown(name)}'", status=404, code="model_not_found"
                )
            _send(responder, self._card(name))
        return None

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "forebay"}

    def _ready(self, message: Message, responder: Responder) -> None:
        """Answer for the process, or with `?pool=NAME` for one pool."""
        snapshot = self._snapshot()
        wanted = parse_qs(message.query).get("pool")
        pools = [pool for pool in snapshot.pools if wanted is None or pool.name in wanted]
        ready = snapshot.ready
        unknown = sorted(set(wanted or ()) - {pool.name for pool in pools})
        if wanted is not None:
            ready = ready and not unknown and all(pool.usable for pool in pools)
        said = {
            "ready": ready,
            "draining": snapshot.draining,
            "config_ok": snapshot.config_ok,
            "pools": {
                pool.name: {"usable": pool.usable, "endpoints": len(pool.endpoints)}
                for pool in pools
            },
            "unknown": unknown,
        }
        _send(responder, said, status=200 if ready else 503)


def _names(served: Served, tenant: Tenant) -> list[str]:
    """List the models that a tenant may use, one entry a name."""
    allowed = tenant.limits.models
    return [
        model
        for pool in served.pools.values()
        for model in pool.models
        if allowed is None or model in allowed
    ]


def _send(responder: Responder, said: dict[str, Any], *, status: int = 200) -> None:
    responder.send(status, _JSON, msgspec.json.encode(said))
