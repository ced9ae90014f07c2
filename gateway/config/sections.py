"""The configuration as frozen, typed sections: what the YAML may say, and what each key means.

Parsed once. A component gets its own section, never the whole tree. Durations are float seconds,
sizes are bytes, once they are here: `30s` and `32MiB` in the file, numbers where Python code builds
a section. What needs more than one section to judge (names used twice, say) is in `relations`.
"""

from __future__ import annotations

from typing import Literal, cast

from pydantic import Field, ValidationInfo, field_validator

from .base import (
    Bytes,
    Count,
    Duration,
    EngineUrl,
    Fault,
    ModelName,
    Name,
    Profile,
    Secret,
    Section,
    Share,
    Url,
)
from .experiments import Experiment, Fallback, Quality  # noqa: TC001 - pydantic reads the annotations
from .prefix import EventsOrAddress, Prefix  # noqa: TC001 - pydantic reads the annotations
from .scheduling import Limit, Order, Scheduling
from .speculation import Method, Speculation
from .tenancy import Auth, Plan, Price, Sla, State, Tenant, resolve


class Drain(Section):
    """What SIGTERM does."""

    notice: Duration = Field(default=5.0, description="how long to go on accepting after SIGTERM")
    limit: Duration = Field(
        default=30.0, description="how long running requests may go on after that"
    )


class Admin(Section):
    """The control plane's own address."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8081, ge=0, le=65535, description="port to listen on; 0 picks one")
    key: Secret | None = Field(
        default=None, description="bearer key; without one only loopback may ask"
    )


class Server(Section):
    """The address callers use, and its limits."""

    later = frozenset({"tls", "workers"})

    host: str = Field(
        default="0.0.0.0",  # noqa: S104 - a gateway is there to be reached
        min_length=1,
        description="address to listen on",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0 picks one")
    max_body: Bytes = Field(default=32 << 20, ge=1, description="longest request body; past it 413")
    max_answer: Bytes = Field(
        default=8 << 20, ge=1, description="longest whole answer held for a retry"
    )
    max_buffered: Bytes = Field(
        default=512 << 20, ge=1, description="all bodies and answers together; past it 429"
    )
    max_header: Bytes = Field(
        default=64 << 10, ge=1024, description="a request's line and headers; past it 431"
    )
    header_timeout: Duration = Field(default=10.0, gt=0, description="to read a request's headers")
    body_timeout: Duration = Field(
        default=30.0, gt=0, description="longest pause inside a request's body"
    )
    keep_alive: Duration = Field(
        default=75.0, gt=0, description="idle connections are closed after this"
    )
    client_stall: Duration = Field(
        default=30.0, gt=0, description="a caller that takes nothing for this long is left"
    )
    drain: Drain = Drain()
    admin: Admin | None = Field(default=None, description="without it there is no admin port")
    metrics: Literal["main", "admin"] = Field(
        default="main", description="where /metrics is served"
    )


class Timeouts(Section):
    """How long an endpoint may take."""

    connect: Duration = Field(default=2.0, gt=0, description="to make a connection")
    first_byte: Duration = Field(default=300.0, gt=0, description="from sending to the first byte")
    idle: Duration = Field(default=60.0, gt=0, description="longest gap between bytes of an answer")
    total: Duration = Field(default=1800.0, gt=0, description="a whole answer")


class Retry(Section):
    """Trying again before the first byte has gone to the caller."""

    attempts: int = Field(default=2, ge=0, le=5, description="further attempts after the first")
    budget: Share = Field(
        default=0.1, ge=0, le=1, description="retries at most, as a share of recent requests"
    )


class QueueLimits(Section):
    """What may wait."""

    max_requests: Count = Field(default=10_000, ge=0, description="requests waiting at once")
    max_bytes: Bytes = Field(default=256 << 20, ge=0, description="bytes of bodies waiting at once")
    deadline: Duration = Field(
        default=600.0, gt=0, description="receipt to first byte; 504 after it"
    )
    classes: dict[Name, Count] = Field(
        default={}, description="requests of an SLA class waiting at once, by its name"
    )


class Health(Section):
    """When an endpoint leaves the rotation and when it returns."""

    interval: Duration = Field(default=5.0, gt=0, description="between probes; jittered by a fifth")
    timeout: Duration = Field(default=2.0, gt=0, description="of one probe")
    fails: int = Field(default=3, ge=1, description="failed probes in a row that take it out")
    successes: int = Field(default=2, ge=1, description="passed probes in a row that bring it back")
    breaker_fails: int = Field(
        default=5,
        ge=1,
        description="failed requests in a row, or 503s and nothing else, that open the breaker",
    )
    breaker_open: Duration = Field(
        default=10.0, gt=0, description="how long the breaker stays open"
    )
    slow_start: Duration = Field(default=10.0, ge=0, description="to ramp back to the full limit")
    load_interval: Duration = Field(default=1.0, gt=0, description="between load readings")


class SimEndpoint(Section):
    """An embedded engine's settings."""

    seed: int = Field(default=0, description="answers are the same for the same seed")
    profile: Profile = Field(default="demo", description="a named step-time profile")
    fault: Fault | None = Field(default=None, description="NAME[:SHARE], as `engine sim --fault`")


class Endpoint(Section):
    """One addressable engine server."""

    later = frozenset({"profile", "role", "roles", "weight"})

    name: Name = Field(description="its name in metrics, logs and headers; once in the file")
    engine: Literal["vllm", "sglang", "trtllm", "llamacpp", "openai", "sim"] = Field(
        description="what software it is; `openai` is any other server with that API"
    )
    url: EngineUrl | None = Field(
        default=None, description="as `http://10.0.0.1:8000`; `sim` without one is embedded"
    )
    discover: Duration | None = Field(
        default=None,
        ge=0.1,
        description="how often the url's host is looked up: each of its addresses is an endpoint, "
        "named NAME-ADDRESS",
    )
    key: Secret | None = Field(default=None, description="the engine's own API key")
    max_in_flight: Limit | None = Field(
        default=None,
        description="requests at once, of all replicas together, or `auto`: found by the engine's "
        "times; default: what the engine says, else 256",
    )
    events: EventsOrAddress | None = Field(
        default=None,
        description="where it publishes what its cache holds: an address, or settings",
    )
    speculative: Method | None = Field(
        default=None, description="how it speculates, if it does; see speculative.md"
    )
    sim: SimEndpoint | None = Field(default=None, description="settings of an embedded engine")


def _models(value: object, default: str | None) -> dict[str, str]:
    """Turn `[a, {b: c}]` into `{a: default or a, b: c}`."""
    several = isinstance(value, list | tuple)
    models: dict[str, str] = {}
    for item in cast("list[object]", value) if several else [value]:
        name = isinstance(item, str) and several
        pairs = {item: ""} if name else item
        if not pairs or not isinstance(pairs, dict):
            raise ValueError("must be a list of names and {caller's name: engine's name} maps")
        models.update(cast("dict[str, str]", pairs))
    if not models:
        raise ValueError("needs at least one entry")
    return {name: engine or default or name for name, engine in models.items()}


class Pool(Section):
    """The endpoints that serve one model."""

    later = frozenset({"isolation", "length", "predictor", "sla"})

    name: Name = Field(description="its name in metrics, logs and headers; once in the file")
    engine_model: ModelName | None = Field(
        default=None, description="name sent on for every model that `models` does not map"
    )
    models: dict[ModelName, ModelName] = Field(
        description="names callers may ask for, or `{caller's name: engine's name}`; each in one "
        "pool only"
    )
    endpoints: tuple[Endpoint, ...] = Field(min_length=1, description="the engine servers")
    order: Order = Field(default="ml", description="who goes next; see policies.md")
    scheduling: Scheduling = Scheduling()
    prefix: Prefix | None = Field(
        default=None, description="send requests where their prefix lies; leave out to not look"
    )
    speculation: Speculation = Speculation()
    queue: QueueLimits = QueueLimits()
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    health: Health = Health()
    quality: Quality | None = Field(
        default=None, description="look at answers, and move away from who gives bad ones"
    )
    fallback: tuple[Fallback, ...] = Field(
        default=(), description="pools that take what this one cannot serve, one after the other"
    )
    allow_fields: tuple[str, ...] = Field(
        default=(), description="engine-control fields that callers of this pool may set"
    )

    @field_validator("models", mode="before")
    @classmethod
    def _name_each_engine_model(cls, value: object, info: ValidationInfo) -> dict[str, str]:
        return _models(value, info.data.get("engine_model"))


class Telemetry(Section):
    """Metrics, traces and logs."""

    otlp: Url | None = Field(
        default=None, description="OTLP/HTTP collector, as http://localhost:4318"
    )
    sample: Share = Field(default=0.1, ge=0, le=1, description="share of requests traced")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    log_requests: bool = Field(default=True, description="one JSON line for each request")


class Config(Section):
    """The whole file."""

    later = frozenset({"predictor", "profiles"})

    version: Literal[1] = Field(description="of this format")
    server: Server = Server()
    state: State = State()
    pools: tuple[Pool, ...] = Field(min_length=1, description="what is served, and by what")
    sla: dict[Name, Sla] = Field(default={}, description="SLA classes by name")
    prices: dict[ModelName, Price] = Field(
        default={}, description="what models cost, by the names callers ask for"
    )
    plans: dict[Name, Plan] = Field(default={}, description="plans that tenants may name")
    auth: Auth = Auth()
    tenants: tuple[Tenant, ...] = Field(
        default=(), description="who may call; without any, everybody may"
    )
    experiments: tuple[Experiment, ...] = Field(
        default=(), description="A/B tests between endpoints or pools; see experiments.md"
    )
    telemetry: Telemetry = Telemetry()

    @field_validator("tenants", mode="after")
    @classmethod
    def _with_their_plans(
        cls, value: tuple[Tenant, ...], info: ValidationInfo
    ) -> tuple[Tenant, ...]:
        plans: dict[str, Plan] = info.data.get("plans", {})
        return tuple(resolve(tenant, plans) for tenant in value)

    @property
    def guests(self) -> dict[str, dict[str, str]]:
        """By pool, the models whose long requests it takes from others, as in their `models`."""
        found: dict[str, dict[str, str]] = {}
        for pool in self.pools:
            long = pool.scheduling.long_pool
            if long is not None:
                found.setdefault(long.pool, {}).update(pool.models)
        return found
