"""On which terms a tenant's requests go: SLA class, weight, deadline, time limits.

All of it is worked out when a configuration is taken; a request only looks up its `Standing`. A
class is the tenant's default one, or what the caller asks for by `x-forebay-sla` and may use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from forebay.policies.contracts import InvalidRequest, Unauthorized

from .keys import OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.gateway.config.sections import Config, Sla, Tenant, Timeouts

HEADER = "x-forebay-sla"


class Standing(Struct, frozen=True):
    """How a request stands among others."""

    sla: str = ""
    rank: int = 0
    """Higher goes before lower where only one can have a place."""
    weight: float = 1.0
    deadline: float | None = None
    """Seconds from receipt to first byte; None: what the pool says."""
    longest_wait: float | None = None
    timeouts: Mapping[str, Timeouts] | None = None
    """By pool, where they are not the pool's own."""


PLAIN = Standing()


class Terms:
    """One tenant's."""

    __slots__ = ("_allowed", "_known", "_usual")

    def __init__(
        self, usual: Standing, allowed: Mapping[bytes, Standing], known: frozenset[bytes]
    ) -> None:
        self._usual = usual
        self._allowed = allowed
        self._known = known

    def standing(self, asked: bytes | None) -> Standing:
        """Return that of a request which asks for this class. Raises Rejected."""
        if asked is None:
            return self._usual
        found = self._allowed.get(asked)
        if found is not None:
            return found
        if asked in self._known:
            name = asked.decode()
            text = f"this key may not use the SLA class '{name}'"
            raise Unauthorized(text, status=403, code="sla_not_allowed", param=HEADER)
        may = ", ".join(sorted(name.decode() for name in self._allowed)) or "none"
        text = f"there is no such SLA class; this key may use: {may}"
        raise InvalidRequest(text, code="sla_unknown", param=HEADER)


def terms_of(config: Config) -> dict[str, Terms]:
    """Return the terms of each tenant that has any, by its name."""
    tenants = config.tenants or (OPEN,)
    weights = sorted({each.weight for each in config.sla.values()})
    known = frozenset(name.encode() for name in config.sla)
    found: dict[str, Terms] = {}
    for tenant in tenants:
        if not config.sla and tenant.weight == 1.0:
            continue
        allowed = {
            name: _standing(name, config, tenant, weights.index(config.sla[name].weight) + 1)
            for name in _allowed(config, tenant)
        }
        usual = allowed.get(tenant.sla or "") or Standing(weight=tenant.weight)
        found[tenant.name] = Terms(usual, {n.encode(): s for n, s in allowed.items()}, known)
    return found


def _allowed(config: Config, tenant: Tenant) -> list[str]:
    """Name the classes a tenant may use: without `limits.sla` its default one, nobody else's."""
    if tenant is OPEN:
        return list(config.sla)
    names = set(tenant.limits.sla or ())
    if tenant.sla is not None:
        names.add(tenant.sla)
    return [name for name in config.sla if name in names]


def _standing(name: str, config: Config, tenant: Tenant, rank: int) -> Standing:
    sla = config.sla[name]
    return Standing(
        sla=name,
        rank=rank,
        weight=tenant.weight * sla.weight,
        deadline=sla.deadline,
        longest_wait=sla.longest_wait,
        timeouts=_timeouts(sla, config),
    )


def _timeouts(sla: Sla, config: Config) -> dict[str, Timeouts] | None:
    own = sla.timeouts.model_dump(exclude_none=True)
    if not own:
        return None
    return {pool.name: pool.timeouts.model_copy(update=own) for pool in config.pools}
