"""On which terms a tenant's requests go: SLA class, weight, deadline, time limits, sizes.

All of it is worked out when a configuration is taken; a request only looks up its `Standing`. A
class is the tenant's default one, or what the caller asks for by `x-forebay-sla` and may use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from forebay.gateway.config.tenancy import reserve_of
from forebay.policies.contracts import Forbidden, InvalidRequest, Route

from .keys import OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.gateway.config.sections import Config, Sla, Tenant, Timeouts
    from forebay.gateway.config.tenancy import Limits

    from .intake import AnyBody

HEADER = "x-forebay-sla"
_HEEDED = {
    Route.CHAT: ("max_tokens", "max_completion_tokens"),
    Route.COMPLETIONS: ("max_tokens",),
    Route.MESSAGES: ("max_tokens",),
    Route.RESPONSES: ("max_output_tokens",),
}
"""Members by which engines bound an answer, the first of which all take; other routes have none."""
_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
"""Every member that some engine takes for such a bound (`n_predict` is llama.cpp's)."""


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
    reserve: str = ""
    """The reserve that its tenant draws on."""
    queue_share: float | None = None
    """Of a pool's queue, what its tenant may take."""


PLAIN = Standing()


class Terms:
    """One tenant's."""

    __slots__ = ("_allowed", "_known", "_usual", "max_output", "max_prompt")

    def __init__(
        self,
        usual: Standing,
        allowed: Mapping[bytes, Standing],
        known: frozenset[bytes],
        limits: Limits,
    ) -> None:
        self.max_prompt = limits.max_prompt
        self.max_output = limits.max_output
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
            raise Forbidden(text, code="sla_not_allowed", param=HEADER)
        may = ", ".join(sorted(name.decode() for name in self._allowed)) or "none"
        text = f"there is no such SLA class; this key may use: {may}"
        raise InvalidRequest(text, code="sla_unknown", param=HEADER)

    def bound(self, body: AnyBody, route: Route, prompt: int) -> dict[str, bytes] | None:
        """Return what to set so that the answer is bounded; None where it is. Raises Rejected."""
        if self.max_prompt is not None and prompt > self.max_prompt:
            raise InvalidRequest(
                f"the prompt is estimated at {prompt} tokens; max_prompt is {self.max_prompt}",
                code="prompt_too_long",
            )
        heeded = _HEEDED.get(route)
        if self.max_output is None or heeded is None:
            return None
        named = {name for name in _BOUNDS if name in body.members and body.get(name) is not None}
        for name in named:
            _check_bound(name, body.get(name), self.max_output)
        return None if named & set(heeded) else {heeded[0]: b"%d" % self.max_output}


def _check_bound(name: str, value: object, most: int) -> None:
    # Engines also take 1e6 and "1000000" for numbers, and -1 for no end.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"'{name}' must be a whole number", param=name)
    if value > most:
        text = f"'{name}' is {value}; this key may ask for {most} (max_output)"
        raise InvalidRequest(text, code="output_too_long", param=name)


def terms_of(config: Config) -> dict[str, Terms]:
    """Return the terms of each tenant that has any, by its name."""
    tenants = config.tenants or (OPEN,)
    weights = sorted({each.weight for each in config.sla.values()})
    known = frozenset(name.encode() for name in config.sla)
    found: dict[str, Terms] = {}
    for tenant in tenants:
        limits = tenant.limits
        if not config.sla and _is_plain(config, tenant):
            continue
        allowed = {
            name: _standing(name, config, tenant, weights.index(config.sla[name].weight) + 1)
            for name in _allowed(config, tenant)
        }
        usual = allowed.get(tenant.sla or "") or _unclassed(config, tenant)
        by_header = {name.encode(): standing for name, standing in allowed.items()}
        found[tenant.name] = Terms(usual, by_header, known, limits)
    return found


def _is_plain(config: Config, tenant: Tenant) -> bool:
    limits = tenant.limits
    sized = limits.max_prompt is not None or limits.max_output is not None
    return not sized and _unclassed(config, tenant) == PLAIN


def _unclassed(config: Config, tenant: Tenant) -> Standing:
    return Standing(
        weight=tenant.weight,
        reserve=reserve_of(tenant, config.plans)[0],
        queue_share=tenant.limits.queue_share,
    )


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
        reserve=reserve_of(tenant, config.plans)[0],
        queue_share=tenant.limits.queue_share,
    )


def _timeouts(sla: Sla, config: Config) -> dict[str, Timeouts] | None:
    own = sla.timeouts.model_dump(exclude_none=True)
    if not own:
        return None
    return {pool.name: pool.timeouts.model_copy(update=own) for pool in config.pools}
