"""The admin API's part that looks at tenants and changes what runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from .admin_guard import Failed
from .operations import CannotNow, CannotReach, NotThere, Operations
from .quota.usage_rows import day_number
from .usage import as_csv

if TYPE_CHECKING:
    from .operations import KeyStatus

T = TypeVar("T")
Call = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the gateway's loop, and waits for it."""


class _Model(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class Tenant(_Model):
    """One tenant, with what it takes from its plan."""

    name: str
    plan: str | None
    sla: str | None
    weight: float
    fail: str
    paused: bool
    keys: int = Field(description="how many it has, expired ones included")
    models: list[str] | None = Field(description="models it may use; null is all")


class Key(_Model):
    """What may be known of a key."""

    id: str = Field(description="first digits of its digest")
    expires: str | None = Field(description="UTC; null is never")
    expired: bool
    note: str | None


class Limit(_Model):
    """One limit and what is used of it now; null is no limit."""

    name: str
    limit: float | None
    used: float
    left: float | None


class Drain(_Model):
    """Whether an endpoint gets new requests, and how many it still has."""

    pool: str
    endpoint: str
    drained: bool
    in_flight: int


class Warming(_Model):
    """How many hot prefixes are still to be prefilled at an endpoint."""

    pool: str
    endpoint: str
    left: int


class Usage(_Model):
    """What one tenant used of one model on one UTC day."""

    tenant: str
    model: str
    day: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float


class UsageRows(_Model):
    """Rows of the ledger, by day, tenant and model."""

    rows: list[Usage]


class ConfigFault(_Model):
    """One error of a configuration."""

    line: int
    path: str
    message: str


class Reloaded(_Model):
    """Whether the file is in force now, else what is wrong with it."""

    ok: bool
    errors: list[ConfigFault]


_FAILURES: dict[int | str, dict[str, Any]] = {
    404: {"model": Failed, "description": "there is no such name; the message has the nearest"},
    409: {"model": Failed, "description": "not now, or not here; the message says why"},
    422: {"model": Failed, "description": "a parameter is wrong; the message says which"},
    503: {"model": Failed, "description": "what is asked for cannot be reached now; try again"},
}


def operations_router(known: Operations, call: Call) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/admin/v1", responses=_FAILURES)
    _add_tenants(router, known, call)
    _add_changes(router, known, call)
    _add_usage(router, known, call)
    _add_experiments(router, known, call)
    return router


def _add_tenants(router: APIRouter, known: Operations, call: Call) -> None:
    @router.get("/tenants")
    def tenants() -> list[Tenant]:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        """List the tenants."""
        return [Tenant.model_validate(each) for each in _done(call, known.tenants())]

    @router.get("/tenants/{name}")
    def tenant(name: str) -> Tenant:  # pyright: ignore[reportUnusedFunction] - likewise
        """Show one tenant."""
        return Tenant.model_validate(_done(call, known.tenant(name)))

    @router.get("/tenants/{name}/limits")
    def limits(name: str) -> list[Limit]:  # pyright: ignore[reportUnusedFunction] - likewise
        """Show a tenant's limits, what is used and what is left."""
        return [Limit.model_validate(each) for each in _done(call, known.limits(name))]

    @router.get("/tenants/{name}/keys")
    def keys(name: str) -> list[Key]:  # pyright: ignore[reportUnusedFunction] - likewise
        """Show what may be known of a tenant's keys; never a key, nor a whole digest."""
        return [_key(each) for each in _done(call, known.keys(name))]


def _add_changes(router: APIRouter, known: Operations, call: Call) -> None:
    @router.post("/tenants/{name}/pause")
    def pause(name: str, request: Request) -> Tenant:  # pyright: ignore[reportUnusedFunction] - likewise
        """Refuse a tenant's new requests (403) until it is resumed or the process restarts."""
        who = request.state.who
        return Tenant.model_validate(_done(call, known.pause(name, paused=True, who=who)))

    @router.post("/tenants/{name}/resume")
    def resume(name: str, request: Request) -> Tenant:  # pyright: ignore[reportUnusedFunction] - likewise
        """Take a tenant's requests again."""
        who = request.state.who
        return Tenant.model_validate(_done(call, known.pause(name, paused=False, who=who)))

    @router.post("/pools/{pool}/endpoints/{endpoint}/drain")
    def drain(pool: str, endpoint: str, request: Request) -> Drain:  # pyright: ignore[reportUnusedFunction] - likewise
        """Place nothing more on an endpoint; what runs on it goes on."""
        change = known.drain(pool, endpoint, drained=True, who=request.state.who)
        return Drain.model_validate(_done(call, change))

    @router.post("/pools/{pool}/endpoints/{endpoint}/undrain")
    def undrain(pool: str, endpoint: str, request: Request) -> Drain:  # pyright: ignore[reportUnusedFunction] - likewise
        """Place on an endpoint again."""
        change = known.drain(pool, endpoint, drained=False, who=request.state.who)
        return Drain.model_validate(_done(call, change))

    @router.post("/pools/{pool}/endpoints/{endpoint}/warm")
    def warm(pool: str, endpoint: str, request: Request) -> Warming:  # pyright: ignore[reportUnusedFunction] - likewise
        """Prefill the pool's hot prefixes at an endpoint, in the gaps that callers leave."""
        begun = known.warm(pool, endpoint, who=request.state.who)
        return Warming.model_validate(_done(call, begun))

    @router.get("/pools/{pool}/endpoints/{endpoint}/warm")
    def warming(pool: str, endpoint: str) -> Warming:  # pyright: ignore[reportUnusedFunction] - likewise
        """Say how many are still to be prefilled."""
        return Warming.model_validate(_done(call, known.warming(pool, endpoint)))

    @router.post("/reload", responses={422: {"model": Reloaded}})
    def reload(request: Request, response: Response) -> Reloaded:  # pyright: ignore[reportUnusedFunction] - likewise
        """Read the configuration file now; with an error in it nothing changes."""
        faults = _done(call, known.reload(who=request.state.who))
        response.status_code = 422 if faults else 200
        errors = [ConfigFault.model_validate(fault) for fault in faults]
        return Reloaded(ok=not faults, errors=errors)


def _add_usage(router: APIRouter, known: Operations, call: Call) -> None:
    @router.get("/usage", response_model=UsageRows)
    def usage(  # pyright: ignore[reportUnusedFunction] - likewise
        tenant: Annotated[str | None, Query(description="of this tenant only")] = None,
        since: Annotated[
            str | None,
            Query(description="from this UTC day on", json_schema_extra={"format": "date"}),
        ] = None,
        form: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
    ) -> UsageRows | Response:
        """Say who used what, by tenant, model and UTC day."""
        try:
            first = day_number(since) if since else 0
        except ValueError:
            raise HTTPException(422, f"since: '{since}' is no day; write 2026-11-01") from None
        rows = _done(call, known.usage(tenant, first))
        if form == "csv":
            return Response(as_csv(rows), media_type="text/csv")
        return UsageRows(rows=[Usage.model_validate(row) for row in rows])


def _add_experiments(router: APIRouter, known: Operations, call: Call) -> None:
    @router.get("/experiments")
    def experiments() -> Response:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        """Tell what each experiment has shown so far."""
        return _as_json({"experiments": _done(call, known.experiments())})

    @router.get("/experiments/{name}")
    def experiment(name: str) -> Response:  # pyright: ignore[reportUnusedFunction] - likewise
        """Tell what one experiment has shown so far: arms, effects, traffic, decisions."""
        return _as_json(_done(call, known.experiment(name)))

    @router.post("/experiments/{name}/{what}")
    def decide(  # pyright: ignore[reportUnusedFunction] - likewise
        name: str,
        what: Literal["promote", "pause", "resume", "rollback", "restart"],
        request: Request,
        arm: Annotated[str, Query(description="which candidate; default: the only one")] = "",
    ) -> Response:
        """Promote (the next stage, then everything), pause, resume, roll back, or restart."""
        chosen = "roll back" if what == "rollback" else what
        who = request.state.who
        return _as_json(_done(call, known.decide(name, chosen, arm=arm, who=who)))


def _as_json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _done(call: Call, work: Coroutine[Any, Any, T]) -> T:
    try:
        return call(work)
    except NotThere as error:
        raise HTTPException(404, str(error)) from None
    except CannotReach as error:
        raise HTTPException(503, str(error)) from None
    except CannotNow as error:
        raise HTTPException(409, str(error)) from None
    except TimeoutError:
        raise HTTPException(503, "the gateway did not answer in time; try again") from None


def _key(status: KeyStatus) -> Key:
    expires = status.expires
    shown = None if expires is None else datetime.fromtimestamp(expires, UTC).isoformat()
    return Key(id=status.id, expires=shown, expired=status.expired, note=status.note)
