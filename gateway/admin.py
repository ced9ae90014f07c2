"""The control plane: status as JSON, health, metrics, API description, and a page to watch.

A FastAPI app of its own, on its own port and thread; nothing of it is loaded unless `server.admin`
is configured. Here it only reads, and only copies; what changes something is in
`admin_operations`. Who may ask: with a key, who shows it as a bearer
token; without one, a peer on this machine that calls us by a loopback name, which keeps out web
pages that had their own name point here; and who changes something must not do it from another
site's page. What says nothing of the traffic (the page's empty frame,
the description, health) needs no key. Serve it without trust in `X-Forwarded-For`.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from hashlib import sha256
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from forebay import __version__

from . import page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .telemetry.counts import PoolTotals
    from .telemetry.histogram import HistogramCopy
    from .telemetry.snapshot import (
        EndpointStatus,
        LengthStatus,
        PoolStatus,
        PrefixStatus,
        Snapshot,
    )

OPEN = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz"})
"""Paths that need no key."""


class AdminState(Protocol):
    """What the admin app reads. Called from its own threads: everything returned is a copy."""

    def snapshot(self) -> Snapshot:
        """Return what the gateway is now."""
        ...

    def totals(self) -> Mapping[str, PoolTotals]:
        """Return each pool's sums since start."""
        ...

    def render_metrics(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text of a scrape."""
        ...


class _Model(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class Histogram(_Model):
    """Counts since start: `counts[i]` values of at most `bounds[i]` seconds, the last one above."""

    bounds: list[float]
    counts: list[int]
    sum_s: float


class Totals(_Model):
    """Sums since start; rates are differences of two readings."""

    requests: int
    failed: int = Field(description="of these: engine errors, cut answers, expired deadlines")
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Histogram
    tpot: Histogram


class Endpoint(_Model):
    """One endpoint; null is 'the engine does not say'."""

    name: str
    engine: str
    state: str
    usable: bool = Field(description="whether requests are placed on it")
    why_out: str = Field(description="why they are not; empty while they are")
    in_flight: int
    limit: int = Field(description="requests it may have at once now")
    in_flight_tokens: int
    connections: int
    running: int | None
    waiting: int | None
    kv_use: float | None = Field(description="KV blocks in use, 0 to 1")
    load_age_s: float | None
    version: str | None


class Length(_Model):
    """A pool's predictor of answers' lengths, where it reads prompts."""

    trusted: bool = Field(description="false: the mean stands in and `ml` is `fair`")
    reason: str = Field(description="why it is not trusted")
    closed_times: int = Field(description="how often trust was lost")
    accuracy: float | None = Field(description="of the last outcomes, in the right bucket")
    tau: float | None = Field(description="rank correlation with the last outcomes")
    outcomes: int
    results: dict[str, int] = Field(description="what became of requests that were to be read")
    seconds: float = Field(description="spent on reading")
    challenger_share: float | None = Field(description="of requests, that new weights predict")


class PrefixSource(_Model):
    """How it is known what an endpoint's cache holds."""

    endpoint: str
    source: str = Field(description="exact, learned, waiting, silent or away")
    told_blocks: int
    expected_blocks: int
    oldest_s: float | None = Field(description="the least recently used expected block's age")
    prefill_rate: float | None = Field(description="prompt tokens a second, as measured")


class PrefixShare(_Model):
    """One tenant's expected blocks."""

    tenant: str
    blocks: int
    evicted: int = Field(description="went first: more than its share")
    refused: int = Field(description="new ones that were not entered")


class PrefixGuard(_Model):
    """Who watches the hit rate."""

    slowed: bool
    times: int = Field(description="how often intake was slowed")
    recent: float = Field(description="hit rate of the last seconds")
    usual: float
    share: float = Field(description="of their places, that endpoints may use now")


class PrefixWarming(_Model):
    """Hot prefixes, and their prefill on endpoints that join."""

    hot: int
    hot_bytes: int
    left: dict[str, int] = Field(description="prompts still to be sent, by endpoint")
    results: dict[str, int]
    tokens: int


class Prefix(_Model):
    """What a pool knows of prefixes, and what came of it."""

    blocks: int
    predicted_tokens: int
    confirmed: int
    ghosts: int = Field(description="predicted hits that did not happen")
    evicted_blocks: int
    emptied: int = Field(description="caches found empty by cached tokens alone")
    prompt_tokens: dict[str, int] = Field(description="of answers that told of hits, by source")
    business_tokens: int = Field(description="that hit, as engines say")
    padding_tokens: int = Field(description="likewise, in hits under 128 tokens")
    saved_s: float = Field(description="of prefill, as estimated")
    sources: list[PrefixSource]
    shares: list[PrefixShare]
    guard: PrefixGuard | None
    warming: PrefixWarming | None


class Pool(_Model):
    """One pool, its queue and its endpoints."""

    name: str
    models: list[str]
    queued: int
    queued_bytes: int
    oldest_wait_s: float
    usable: int = Field(description="endpoints that requests are placed on")
    endpoints: list[Endpoint]
    totals: Totals | None
    length: Length | None = None
    prefix: Prefix | None = None


class Status(_Model):
    """The whole gateway."""

    version: str
    now_unix_s: float
    uptime_s: float
    ready: bool
    draining: bool
    config_ok: bool = Field(description="false after a refused reload")
    client_connections: int
    buffered_bytes: int
    buffered_limit_bytes: int
    settlements_waiting: int
    loop_pause_max_s: float
    pools: list[Pool]


class PoolHealth(_Model):
    """How many endpoints of a pool requests are placed on."""

    usable: int
    endpoints: int


class Readiness(_Model):
    """Whether to send requests here."""

    ready: bool
    draining: bool
    config_ok: bool
    pools: dict[str, PoolHealth]


def admin_app(state: AdminState, key: str | None, *routers: APIRouter) -> FastAPI:
    """Build the app. `key` None means that only this machine may ask; `routers` add to it."""
    app = FastAPI(
        title="forebay admin",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(Guard, key=key)
    app.add_exception_handler(HTTPException, _failed)
    _add_api(app, state)
    for router in routers:
        app.include_router(router)
    _add_pages(app)
    return app


def _add_api(app: FastAPI, state: AdminState) -> None:
    @app.get("/admin/v1/status")
    def status() -> Status:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        """Say what the gateway is and does now."""
        return _status(state.snapshot(), state.totals(), time.time())

    @app.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:  # pyright: ignore[reportUnusedFunction] - likewise
        """Say that the process is alive."""
        return "ok"

    @app.get("/readyz", responses={503: {"model": Readiness}})
    def readyz(  # pyright: ignore[reportUnusedFunction] - likewise
        response: Response, pool: Annotated[list[str] | None, Query()] = None
    ) -> Readiness:
        """Say whether to send requests here; with pool=NAME, whether that pool can serve them."""
        said = _readiness(state.snapshot(), pool)
        response.status_code = 200 if said.ready else 503
        return said

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics(  # pyright: ignore[reportUnusedFunction] - likewise
        accept: Annotated[str, Header()] = "",
    ) -> Response:
        """Render the metrics for Prometheus."""
        content_type, text = state.render_metrics(accept)
        return Response(text, headers={"content-type": content_type})


def _add_pages(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def live() -> Response:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        return HTMLResponse(page.PAGE, headers=page.HEADERS)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs() -> Response:  # pyright: ignore[reportUnusedFunction] - likewise
        return HTMLResponse(page.describe(app.openapi()), headers=page.HEADERS)


def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if message == HTTPStatus(error.status_code).phrase:
        message = message.lower()  # the framework's own
    return _error(error.status_code, message, "invalid_request_error")


def _error(status: int, message: str, kind: str) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    said = {"error": {"message": message, "type": kind, "code": None}}
    return JSONResponse(said, status, headers)


def _status(snapshot: Snapshot, totals: Mapping[str, PoolTotals], now: float) -> Status:
    return Status(
        version=snapshot.version,
        now_unix_s=now,
        uptime_s=max(0.0, now - snapshot.started_unix_s),
        ready=snapshot.ready,
        draining=snapshot.draining,
        config_ok=snapshot.config_ok,
        client_connections=snapshot.client_connections,
        buffered_bytes=snapshot.buffered_bytes,
        buffered_limit_bytes=snapshot.buffered_limit_bytes,
        settlements_waiting=snapshot.settlements_waiting,
        loop_pause_max_s=snapshot.loop_pause_max_s,
        pools=[_pool(pool, totals.get(pool.name)) for pool in snapshot.pools],
    )


def _pool(pool: PoolStatus, totals: PoolTotals | None) -> Pool:
    return Pool(
        name=pool.name,
        models=list(pool.models),
        queued=pool.queued,
        queued_bytes=pool.queued_bytes,
        oldest_wait_s=pool.oldest_wait_s,
        usable=pool.usable,
        endpoints=[_endpoint(endpoint) for endpoint in pool.endpoints],
        totals=None if totals is None else _totals(totals),
        length=None if pool.length is None else _length(pool.length),
        prefix=None if pool.prefix is None else _prefix(pool.prefix),
    )


_PREFIX_COUNTS = (
    *("blocks", "predicted_tokens", "confirmed", "ghosts", "evicted_blocks", "emptied"),
    "saved_s",
)


def _prefix(prefix: PrefixStatus) -> Prefix:
    guard, warming = prefix.guard, prefix.warming
    kinds = {"business": 0, "padding": 0}
    for (_, kind), tokens in prefix.hit_tokens.items():
        kinds[kind] += tokens
    return Prefix(
        **{name: getattr(prefix, name) for name in _PREFIX_COUNTS},
        prompt_tokens=dict(prefix.prompt_tokens),
        business_tokens=kinds["business"],
        padding_tokens=kinds["padding"],
        sources=[PrefixSource.model_validate(each) for each in prefix.sources],
        shares=[PrefixShare.model_validate(each) for each in prefix.shares],
        guard=None if guard is None else PrefixGuard.model_validate(guard),
        warming=None if warming is None else PrefixWarming.model_validate(warming),
    )


def _length(length: LengthStatus) -> Length:
    fields = {name: getattr(length, name) for name in Length.model_fields if name != "results"}
    return Length(**fields, results=dict(length.results))


def _endpoint(endpoint: EndpointStatus) -> Endpoint:
    return Endpoint.model_validate(endpoint)


def _totals(totals: PoolTotals) -> Totals:
    return Totals(
        requests=totals.requests,
        failed=totals.failed,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        ttft=_histogram(totals.ttft),
        tpot=_histogram(totals.tpot),
    )


def _histogram(copy: HistogramCopy) -> Histogram:
    return Histogram(bounds=list(copy.bounds), counts=list(copy.counts), sum_s=copy.total)


def _readiness(snapshot: Snapshot, wanted: list[str] | None) -> Readiness:
    pools = {
        pool.name: PoolHealth(usable=pool.usable, endpoints=len(pool.endpoints))
        for pool in snapshot.pools
        if wanted is None or pool.name in wanted
    }
    served = wanted is None or all(name in pools and pools[name].usable for name in wanted)
    return Readiness(
        ready=snapshot.ready and served,
        draining=snapshot.draining,
        config_ok=snapshot.config_ok,
        pools=pools,
    )


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
            if _is_local(scope, headers) and not _is_foreign_change(scope, headers):
                _name(scope, "loopback")
                return None
            message = "only this machine may ask; set server.admin.key to allow others"
            return _error(403, message, "permission_error")
        if scope["path"] in OPEN or self._is_key(headers.get(b"authorization", b"")):
            _name(scope, f"key:{self._digest.hex()[:12]}")
            return None
        return _error(401, "the admin key is missing or wrong", "authentication_error")

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
