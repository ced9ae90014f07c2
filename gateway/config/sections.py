"""The configuration as frozen, typed sections: what the YAML may say, and what each key means.

Parsed once. A component gets its own section, never the whole tree. Durations are float seconds,
sizes are bytes, once they are here; `load` turns `30s` and `32MiB` into them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from .units import parse_bytes, parse_count, parse_duration, parse_share

Duration = Annotated[float, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Count = Annotated[int, BeforeValidator(parse_count)]
Share = Annotated[float, BeforeValidator(parse_share)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Section(BaseModel):
    """A misspelt key must be an error, never silently dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Drain(Section):
    """What SIGTERM does."""

    notice: Duration = Field(5.0, description="how long to go on accepting after SIGTERM")
    limit: Duration = Field(30.0, description="how long running requests may go on after that")


class Admin(Section):
    """The control plane's own address."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8081, ge=0, le=65535, description="port to listen on; 0 picks one")
    key: SecretStr | None = Field(None, description="bearer key; without one only loopback may ask")


class Server(Section):
    """The address callers use, and its limits."""

    host: str = Field("0.0.0.0", description="address to listen on")  # noqa: S104 - a gateway's job
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 picks one")
    max_body: Bytes = Field(32 << 20, ge=1, description="longest request body")
    max_answer: Bytes = Field(8 << 20, ge=1, description="longest whole answer held for a retry")
    max_buffered: Bytes = Field(512 << 20, ge=1, description="all bodies and answers together")
    max_header: Bytes = Field(64 << 10, ge=1024, description="request line and headers of a request")
    header_timeout: Duration = Field(10.0, gt=0, description="to read a request's headers")
    body_timeout: Duration = Field(30.0, gt=0, description="longest pause inside a request's body")
    keep_alive: Duration = Field(75.0, gt=0, description="idle connections are closed after this")
    client_stall: Duration = Field(30.0, gt=0, description="a caller that takes nothing this long")
    drain: Drain = Drain()
    admin: Admin | None = Field(None, description="leave out to have no admin port")
    metrics: Literal["main", "admin"] = Field("main", description="where /metrics is served")


class Timeouts(Section):
    """How long an endpoint may take."""

    connect: Duration = Field(2.0, gt=0, description="to make a connection")
    first_byte: Duration = Field(300.0, gt=0, description="from sending to the first byte")
    idle: Duration = Field(60.0, gt=0, description="longest gap between bytes of an answer")
    total: Duration = Field(1800.0, gt=0, description="a whole answer")


class Retry(Section):
    """Trying again before the first byte has gone to the caller."""

    attempts: int = Field(2, ge=0, le=5, description="further attempts after the first")
    budget: Share = Field(0.1, ge=0, le=1, description="share of a pool's recent requests")


class QueueLimits(Section):
    """What may wait."""

    max_requests: Count = Field(10_000, ge=0, description="requests waiting at once")
    max_bytes: Bytes = Field(256 << 20, ge=0, description="bytes of bodies waiting at once")
    deadline: Duration = Field(60.0, gt=0, description="receipt to first byte; 504 after it")


class Health(Section):
    """When an endpoint leaves the rotation and when it returns."""

    interval: Duration = Field(5.0, gt=0, description="between probes; jittered by a fifth")
    timeout: Duration = Field(2.0, gt=0, description="of one probe")
    fails: int = Field(3, ge=1, description="failed probes in a row that take it out")
    successes: int = Field(2, ge=1, description="passed probes in a row that bring it back")
    breaker_fails: int = Field(5, ge=1, description="failed requests in a row that open the breaker")
    breaker_open: Duration = Field(10.0, gt=0, description="how long the breaker stays open")
    slow_start: Duration = Field(10.0, ge=0, description="to ramp back to the full limit")
    load_interval: Duration = Field(1.0, gt=0, description="between load readings")


class Endpoint(Section):
    """One addressable engine server."""

    name: Name
    engine: Literal["vllm", "sglang", "trtllm", "llamacpp", "openai", "sim"]
    url: str | None = Field(None, description="http(s)://host:port; `sim` without one is embedded")
    key: SecretStr | None = Field(None, description="the engine's own API key")
    max_in_flight: int | None = Field(
        None, ge=1, description="requests at once; default: what the engine says, else 256"
    )
    sim: SimEndpoint | None = Field(None, description="settings of an embedded engine")


class SimEndpoint(Section):
    """An embedded engine's settings."""

    seed: int = 0
    profile: str = Field("demo", description="a named step-time profile")
    fault: str | None = Field(None, description="NAME[:SHARE], as `engine sim --fault`")


class Pool(Section):
    """The endpoints that serve one model."""

    name: Name
    models: dict[str, str] = Field(
        min_length=1, description="names callers may ask for; each may map to the engine's name"
    )
    engine_model: str | None = Field(None, description="name sent on, unless `models` maps it")
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)
    order: Literal["fcfs"] = "fcfs"
    queue: QueueLimits = QueueLimits()
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    health: Health = Health()
    allow_fields: tuple[str, ...] = Field(
        (), description="engine-control fields that callers of this pool may set"
    )


class Tenant(Section):
    """Who is billed and limited."""

    name: Name
    keys: tuple[str, ...] = Field(
        min_length=1, description="`sha256:` digests of API keys, as `forebay keys new` prints them"
    )
    models: tuple[str, ...] | None = Field(None, description="models it may use; default: all")
    debug_headers: bool = Field(default=False, description="send the x-forebay-* diagnostics")


class Telemetry(Section):
    """Metrics, traces and logs."""

    otlp: str | None = Field(None, description="OTLP/HTTP collector, as http://localhost:4318")
    sample: Share = Field(0.1, ge=0, le=1, description="share of requests traced")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_requests: bool = Field(default=True, description="one JSON line for each request")


class Config(Section):
    """The whole file."""

    version: Literal[1]
    server: Server = Server()
    pools: tuple[Pool, ...] = Field(min_length=1)
    tenants: tuple[Tenant, ...] = ()
    telemetry: Telemetry = Telemetry()
