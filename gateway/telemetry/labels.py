"""Which label values exist: those of the configuration, and `other`.

A name that a caller made up never becomes a time series. An empty value means that there is none:
no endpoint was chosen, no tenants are configured, nothing was answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

from forebay.adapters.registry import CONTROL_FIELDS
from forebay.policies.contracts import Finish, Route

from .codes import OTHER, code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.gateway.config.sections import Config
    from forebay.policies.contracts import Outcome

ROUTES = frozenset(
    [
        *map(str, Route),
        "/v1/responses/{id}",
        "/v1/responses/{id}/cancel",
        "/v1/responses/{id}/input_items",
    ]
)
FINISHES = frozenset(map(str, Finish))
PHASES = ("uploading", "queued", "waiting", "streaming")
"""Where a request was when its caller left; `waiting` is placed, without a byte of answer."""
STATES = (
    *("unknown", "up", "returning", "half_open", "open", "down", "misconfigured"),
    OTHER,
)
"""What an endpoint may be; exactly one is 1. `returning` is up, below its full limit; `open` and
`half_open` are the breaker's."""
SOURCES = ("learned", "waiting", "exact", "silent", "away")
"""How it is known what an endpoint's cache holds: from where requests went; or by its events, of
which none came yet, or they do, or none comes that must, or nobody reads them just now."""
_ANY = float("inf")


Labels = tuple[str, ...]
"""The values of one metric's labels, in their order."""


class Names(NamedTuple):
    """The names of one outcome that logs and traces may say."""

    pool: str
    route: str
    endpoint: str
    tenant: str
    model: str
    finish: str
    finish_reason: str
    error: str


@dataclass(frozen=True, slots=True)
class PoolLabels:
    """The names that one pool brings."""

    endpoints: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LabelSpace:
    """All names that may be label values. `fields` are the control fields that adapters know."""

    pools: Mapping[str, PoolLabels]
    tenants: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()
    targets: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    """Of each SLA class: ttft and tpot in seconds, infinite where it has none."""
    experiments: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Collect the names of a configuration."""
        guests = config.guests
        pools = {
            pool.name: PoolLabels(
                frozenset(e.name for e in pool.endpoints),
                frozenset(pool.models) | guests.get(pool.name, {}).keys(),
            )
            for pool in config.pools
        }
        tenants = frozenset(tenant.name for tenant in config.tenants) or frozenset({"default"})
        targets = {name: (sla.ttft or _ANY, sla.tpot or _ANY) for name, sla in config.sla.items()}
        experiments = frozenset(each.name for each in config.experiments)
        known = MappingProxyType(targets)
        return cls(MappingProxyType(pools), tenants, CONTROL_FIELDS, known, experiments)

    def pool(self, name: str) -> str:
        """Return the label for a pool's name."""
        return name if not name or name in self.pools else OTHER

    def endpoint(self, pool: str, name: str) -> str:
        """Return the label for the name of an endpoint of this pool."""
        known = self.pools.get(pool)
        return name if not name or (known and name in known.endpoints) else OTHER

    def model(self, pool: str, name: str) -> str:
        """Return the label for a model name that callers of this pool may use."""
        known = self.pools.get(pool)
        return name if not name or (known and name in known.models) else OTHER

    def tenant(self, name: str) -> str:
        """Return the label for a tenant's name."""
        return name if not name or name in self.tenants else OTHER

    def has(self, names: Labels, values: Labels) -> bool:
        """Tell whether the names in a label set are (still) the configuration's."""
        said = dict(zip(names, values, strict=True))
        pool, endpoint = said.get("pool", ""), said.get("endpoint", "")
        tenant, model = said.get("tenant", ""), said.get("model", "")
        return (
            self.pool(pool) == pool
            and self.endpoint(pool, endpoint) == endpoint
            and self.tenant(tenant) == tenant
            and self.model(pool, model) == model
            and ("sla" not in said or said["sla"] in self.targets)
            and ("experiment" not in said or said["experiment"] in self.experiments)
        )

    def names(self, o: Outcome) -> Names:
        """Return what may be said of an outcome: no text of a caller's or an engine's making."""
        return Names(
            self.pool(o.pool),
            route_label(o.route),
            self.endpoint(o.pool, o.endpoint),
            self.tenant(o.tenant),
            self.model(o.pool, o.model),
            finish_label(o.finish),
            code(o.finish_reason),
            code(o.error),
        )

    def field(self, name: str) -> str:
        """Return the label for a control field."""
        return name if name in self.fields else OTHER


def route_label(route: str) -> str:
    """Return the label for a route: its template, never a path with an id in it."""
    return str(route) if not route or route in ROUTES else OTHER


def status_label(status: int) -> str:
    """Return the label for an HTTP status; 0, nothing was answered, is empty."""
    if not status:
        return ""
    return str(status) if 100 <= status <= 599 else OTHER


def finish_label(finish: str) -> str:
    """Return the label for how a call ended."""
    return str(finish) if finish in FINISHES else OTHER


def state_label(state: str) -> str:
    """Return the label for an endpoint's state."""
    return str(state) if state in STATES else OTHER
