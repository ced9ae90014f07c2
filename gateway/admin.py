"""The control plane: status as JSON, health, metrics, API description, and a page to watch.

A FastAPI app of its own, on its own port and thread; nothing of it is loaded unless `server.admin`
is configured. Here it only reads, and only copies; what changes something is in
`admin_operations`, and who may ask in `admin_guard`. What says nothing of the traffic (the page's
empty frame, the description, health) needs no key. Serve it without trust in `X-Forwarded-For`.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Protocol

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from forebay import __version__

from . import page
from .admin_guard import REFUSALS, Failed, Guard, error_answer
from .admin_status import Readiness, Status, readiness_of, status_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .telemetry.counts import PoolTotals
    from .telemetry.snapshot import Snapshot


# Only tells the description that a key is wanted: the guard has looked at it before.
_BEARER = HTTPBearer(auto_error=False, scheme_name="admin key", description="server.admin.key")


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
    app.add_exception_handler(RequestValidationError, _not_understood)
    keyed = [Depends(_BEARER)] if key else []
    _add_health(app, state)
    for router in (_reading(state), *routers):
        app.include_router(router, dependencies=keyed, responses=REFUSALS)
    _add_pages(app)
    return app


def _reading(state: AdminState) -> APIRouter:
    router = APIRouter()

    @router.get("/admin/v1/status")
    def status() -> Status:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        """Say what the gateway is and does now."""
        return status_of(state.snapshot(), state.totals(), time.time())

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction] - likewise
        """Render the metrics for Prometheus."""
        content_type, text = state.render_metrics(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    return router


def _add_health(app: FastAPI, state: AdminState) -> None:
    @app.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        """Say that the process is alive."""
        return "ok"

    @app.get("/readyz", responses={422: {"model": Failed}, 503: {"model": Readiness}})
    def readyz(  # pyright: ignore[reportUnusedFunction] - likewise
        response: Response, pool: Annotated[list[str] | None, Query()] = None
    ) -> Readiness:
        """Say whether to send requests here; with pool=NAME, whether that pool can serve them."""
        said = readiness_of(state.snapshot(), pool)
        response.status_code = 200 if said.ready else 503
        return said


def _add_pages(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def live() -> Response:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        return HTMLResponse(page.PAGE, headers=page.HEADERS)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs() -> Response:  # pyright: ignore[reportUnusedFunction] - likewise
        return HTMLResponse(page.describe(app.openapi()), headers=page.HEADERS)


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, path = str(error.detail), request.url.path[:200]
    if message == HTTPStatus(error.status_code).phrase:  # the framework's own
        message = message.lower()
        if error.status_code == HTTPStatus.NOT_FOUND:
            message = f"there is no route {path}; /docs says which there are"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            message = f"{path} takes {(error.headers or {}).get('Allow', 'another method')}"
    return error_answer(error.status_code, message, "invalid_request_error")


def _not_understood(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    message = re.sub(r"\b(?:Input|Value|String) should ", "must ", told)
    return error_answer(HTTPStatus.UNPROCESSABLE_ENTITY, message, "invalid_request_error")
