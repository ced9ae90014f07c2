"""What an operator may look at and change while the gateway runs; on the loop's thread.

The admin API asks for it here, and so may whatever else acts in an operator's place. Every change
is one line in the log, from the logger `forebay.audit`: who, what, to whom, and how it ended.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.gateway.config.errors import ConfigErrors, Fault
from forebay.gateway.config.suggest import did_you_mean
from forebay.gateway.config.units import shown
from forebay.policies.quota import NAMES

from .experiments.store import ExperimentsAway
from .quota.store import StoreAway

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay.gateway.config.sections import Tenant
    from forebay.policies.experiments.ramp import What

    from .endpoint import Endpoint
    from .experiment_report import Report
    from .pools import Pool
    from .process import Process
    from .quota.usage_rows import Row

audit = logging.getLogger("forebay.audit")

_SHOWN_DIGITS = 12
_NAMED = 20
"""Names that an error lists."""


class NotThere(Exception):  # noqa: N818 - what is asked for, not what broke
    """There is no such tenant, pool or endpoint."""


class CannotNow(Exception):  # noqa: N818 - likewise
    """It cannot be done in the state that the gateway is in."""


class CannotReach(CannotNow):
    """What it needs is away; it may be back soon."""


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """One tenant, its plan's settings included."""

    name: str
    plan: str | None
    sla: str | None
    weight: float
    fail: str
    paused: bool
    keys: int
    models: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """What may be known of a key."""

    id: str
    """The first digits of its digest; the rest is told to nobody."""
    expires: float | None
    expired: bool
    note: str | None


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit, and how much of it is used now. `limit` None: none is set."""

    name: str
    limit: float | None
    used: float

    @property
    def left(self) -> float | None:
        """Return what is left of it."""
        return None if self.limit is None else max(0.0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class EndpointDrain:
    """Whether an endpoint gets new requests, and how many it still has."""

    pool: str
    endpoint: str
    drained: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class Warming:
    """How many hot prefixes are still to be prefilled at an endpoint."""

    pool: str
    endpoint: str
    left: int


class Operations:
    """Looks and changes, by name. Raises NotThere for a name that is none."""

    def __init__(self, process: Process) -> None:
        self._process = process

    # -- tenants ---------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantStatus]:
        """Return all tenants."""
        return [self._status(tenant) for tenant in self._process.config.tenants]

    async def tenant(self, name: str) -> TenantStatus:
        """Return one tenant."""
        return self._status(self._find(name))

    async def keys(self, name: str) -> list[KeyStatus]:
        """Return what may be known of a tenant's keys."""
        now = time.time()
        return [
            KeyStatus(
                id=key.digest.removeprefix("sha256:")[:_SHOWN_DIGITS],
                expires=key.expires,
                expired=key.expires is not None and key.expires <= now,
                note=key.note,
            )
            for key in self._find(name).keys
        ]

    async def limits(self, name: str) -> list[LimitStatus]:
        """Return a tenant's limits and what is used of them now."""
        limits = self._find(name).limits
        used = await self._used(name)
        return [
            LimitStatus(limit, getattr(limits, limit), number)
            for limit, number in zip(NAMES, used, strict=True)
        ]

    async def pause(self, name: str, *, paused: bool, who: str) -> TenantStatus:
        """Refuse a tenant's new requests, or take them again; what runs goes on."""
        tenant = self._find(name)
        names = self._process.app.paused
        changed = paused != (name in names)
        (names.add if paused else names.discard)(name)
        self._process.connections.heads.clear()
        _note("pause tenant" if paused else "resume tenant", who, tenant=name, changed=changed)
        return self._status(tenant)

    async def usage(self, tenant: str | None, since: int) -> Sequence[Row]:
        """Return who used what from a day (as 20261129) on, of one tenant or all."""
        rows = await self._rows(None if tenant is None else [tenant], since)
        if tenant is not None and not rows:
            self._find(tenant)  # one that is gone may still have rows, so they are looked for first
        return rows

    async def _used(self, tenant: str) -> tuple[float, ...]:
        try:
            used = await self._process.metering.used(tenant)
        except StoreAway as error:
            raise CannotReach("the shared counters cannot be reached") from error
        if used is None:
            raise CannotNow("nothing is metered: the configuration has no tenants")
        return used

    async def _rows(self, tenants: Sequence[str] | None, since: int) -> Sequence[Row]:
        try:
            rows = await self._process.metering.usage(tenants, since)
        except StoreAway as error:
            raise CannotReach("the ledger cannot be read") from error
        if rows is None:
            raise CannotNow(
                "no usage is kept: it needs tenants, or a ledger that can be written (state.ledger)"
            )
        return rows

    def _find(self, name: str) -> Tenant:
        for tenant in self._process.config.tenants:
            if tenant.name == name:
                return tenant
        raise _not_there("tenant", name, [each.name for each in self._process.config.tenants])

    def _status(self, tenant: Tenant) -> TenantStatus:
        return TenantStatus(
            name=tenant.name,
            plan=tenant.plan,
            sla=tenant.sla,
            weight=tenant.weight,
            fail=tenant.fail,
            paused=tenant.name in self._process.app.paused,
            keys=len(tenant.keys),
            models=tenant.limits.models,
        )

    # -- experiments -----------------------------------------------------------------------------

    async def experiments(self) -> list[Report]:
        """Return what each experiment has shown so far."""
        return self._process.experiments.reports()

    async def experiment(self, name: str) -> Report:
        """Return what one experiment has shown so far."""
        for report in self._process.experiments.reports(name):
            return report
        raise self._no_experiment(name)

    def _no_experiment(self, name: str) -> NotThere:
        named = [each.name for each in self._process.config.experiments]
        return _not_there("experiment", name, named)

    async def decide(self, name: str, what: What, *, arm: str, who: str) -> Report:
        """Promote, pause, resume, roll back or restart an experiment."""
        keeper = self._process.experiments.keeper
        if keeper is None or name not in keeper.live:
            raise self._no_experiment(name)
        try:
            await keeper.decide(name, what, arm=arm, who=who)
        except ExperimentsAway as error:
            raise CannotReach(str(error)) from error
        except ValueError as error:
            raise CannotNow(str(error)) from error
        return await self.experiment(name)

    # -- endpoints and configuration -------------------------------------------------------------

    async def drain(self, pool: str, endpoint: str, *, drained: bool, who: str) -> EndpointDrain:
        """Place nothing more on an endpoint, or place again; what runs on it goes on."""
        found, one = self._endpoint(pool, endpoint)
        health = one.health
        changed, health.drained = health.drained != drained, drained
        found.upkeep.refresh(one, self._process.app.now())
        action = "drain endpoint" if drained else "undrain endpoint"
        _note(action, who, pool=pool, endpoint=endpoint, changed=changed)
        return EndpointDrain(pool, endpoint, health.drained, one.view.in_flight)

    async def warming(self, pool: str, endpoint: str) -> Warming:
        """Return how far an endpoint is from being warm."""
        found, _ = self._warmed(pool, endpoint)
        return Warming(pool, endpoint, found.upkeep.warming(endpoint))

    async def warm(self, pool: str, endpoint: str, *, who: str) -> Warming:
        """Prefill the pool's hot prefixes at an endpoint, in the gaps that callers leave."""
        found, one = self._warmed(pool, endpoint)
        if not one.health.usable:
            raise CannotNow("this endpoint is out of the rotation")
        left = found.upkeep.warm(one, self._process.app.now())
        _note("warm endpoint", who, pool=pool, endpoint=endpoint, prompts=left)
        return Warming(pool, endpoint, left)

    def _warmed(self, pool: str, endpoint: str) -> tuple[Pool, Endpoint]:
        found, one = self._endpoint(pool, endpoint)
        if found.prefix is None or found.prefix.warmer is None:
            raise CannotNow(f"pool {pool} keeps no hot prefixes; set 'prefix.warm'")
        return found, one

    def _endpoint(self, pool: str, endpoint: str) -> tuple[Pool, Endpoint]:
        pools = self._process.app.pools
        if pool not in pools:
            raise _not_there("pool", pool, pools)
        endpoints = pools[pool].endpoints
        if endpoint not in endpoints:
            raise _not_there("endpoint", endpoint, endpoints)
        return pools[pool], endpoints[endpoint]

    async def reload(self, *, who: str) -> tuple[Fault, ...]:
        """Read the configuration now; return what is wrong with it, nothing when it is in force."""
        watcher = self._process.watcher
        if watcher is None:
            raise CannotNow("there is no configuration file to read")
        error = await watcher.reload()
        _note("reload", who, changed=error is None)
        if error is None:
            return ()
        return error.errors if isinstance(error, ConfigErrors) else (Fault(0, "", error.message),)


def _not_there(what: str, name: str, known: Iterable[str]) -> NotThere:
    names = list(known)
    hint = did_you_mean(name, names)
    if not hint:
        hint = f"; there are: {', '.join(names[:_NAMED])}" if names else "; there is none at all"
    return NotThere(f"there is no {what} {shown(name)}{hint}")


def _note(action: str, who: str, **what: object) -> None:
    audit.info("admin change", extra={"action": action, "who": who, **what})
