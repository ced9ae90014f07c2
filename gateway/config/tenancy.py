"""Who may call, and what for: tenants, plans, SLA classes, prices, and where counters are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr

from forebay.policies.shares import RESERVE

from .base import (
    Count,
    Digest,
    Duration,
    ModelName,
    Name,
    Secret,
    Section,
    Share,
    Url,
    checked,
)
from .units import parse_share, shown
from .values import check_digest, check_state_url, check_zone

if TYPE_CHECKING:
    from collections.abc import Mapping

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Signatures that only the issuer can make: a shared secret would let its readers make tokens."""


def read_moment(value: object) -> object:
    """Read a UTC date (its first moment) or a timestamp as seconds since 1970."""
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        wanted = "a date such as 2027-12-31 or a time such as 2027-12-31T18:00:00Z"
        raise ValueError(f"must be {wanted}, not {shown(value)}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def read_reserve(value: object) -> object:
    """Return a share of the places; `true` is the usual one."""
    if isinstance(value, bool):
        return RESERVE if value else 0.0
    return parse_share(value)


def _key(value: object) -> object:
    """Take a bare digest for a key without expiry."""
    return Key(digest=check_digest(value)) if isinstance(value, str) else value


Moment = Annotated[float, BeforeValidator(read_moment)]
Weight = Annotated[float, Field(gt=0, le=1000)]
Reserved = Annotated[float, BeforeValidator(read_reserve), Field(ge=0, le=1)]
Zone = Annotated[str, checked(check_zone)]
StateUrl = Annotated[SecretStr, checked(check_state_url)]


class Key(Section):
    """One API key, or just its digest as a text."""

    digest: Digest = Field(description="`sha256:` and 64 digits, as `forebay keys new` prints it")
    expires: Moment | None = Field(
        default=None, description="a UTC date (its first moment) or a time; 401 from then on"
    )
    note: str | None = Field(
        default=None, max_length=200, description="for people, in the admin API"
    )


class Limits(Section):
    """What a tenant may use; a limit that is not given is none."""

    requests_per_minute: Count | None = Field(
        default=None, ge=1, description="in any 60 s; past it 429"
    )
    tokens_per_minute: Count | None = Field(
        default=None, ge=1, description="prompt and output tokens in any 60 s"
    )
    concurrent: Count | None = Field(default=None, ge=1, description="requests at once")
    tokens_per_day: Count | None = Field(default=None, ge=1, description="in a day")
    tokens_per_month: Count | None = Field(default=None, ge=1, description="in a month")
    money_per_day: float | None = Field(
        default=None, gt=0, description="in a day, in the money of `prices`"
    )
    money_per_month: float | None = Field(
        default=None, gt=0, description="in a month, in the money of `prices`"
    )
    max_prompt: Count | None = Field(
        default=None, ge=1, description="longest prompt in tokens, as estimated; past it 400"
    )
    max_output: Count | None = Field(
        default=None, ge=1, description="output tokens of one answer; who asks for more gets 400"
    )
    queue_share: Share | None = Field(
        default=None, gt=0, le=1, description="of the places in a pool's queue; past it 429"
    )
    models: tuple[ModelName, ...] | None = Field(
        default=None, min_length=1, description="models it may use; default: all"
    )
    sla: tuple[Name, ...] | None = Field(
        default=None,
        min_length=1,
        description="SLA classes it may ask for by x-forebay-sla; default: its own one only",
    )


class Plan(Section):
    """What tenants of one kind have in common; a tenant's own keys go before."""

    flags = frozenset({"reserve"})

    sla: Name | None = Field(default=None, description="SLA class of its tenants")
    weight: Weight = Field(default=1.0, description="share of the engines next to other tenants")
    reserve: Reserved = Field(
        default=0.0,
        description="share of each pool's places kept for its tenants together; `true` is 20 %",
    )
    timezone: Zone = Field(
        default="UTC", description="whose days and months count, as `Asia/Tokyo`"
    )
    fail: Literal["open", "closed"] = Field(
        default="open", description="without Redis: go on with a local share, or refuse"
    )
    fallback: bool = Field(
        default=False, description="other pools may answer its requests, as `pools[].fallback` says"
    )
    limits: Limits = Limits()


class Tenant(Section):
    """Who is billed and limited."""

    later = frozenset({"priority"})
    flags = frozenset({"reserve"})

    name: Name = Field(description="its name in metrics and logs; once in the file")
    keys: tuple[Annotated[Key, BeforeValidator(_key)], ...] = Field(
        default=(), description="API keys: digests, or mappings as below"
    )
    plan: Name | None = Field(default=None, description="plan whose settings it takes")
    sla: Name | None = Field(default=None, description="SLA class of its requests")
    weight: Weight = Field(default=1.0, description="share of the engines next to other tenants")
    reserve: Reserved = Field(
        default=0.0, description="share of each pool's places kept for it alone, not its plan's"
    )
    timezone: Zone = Field(
        default="UTC", description="whose days and months count, as `Asia/Tokyo`"
    )
    limits: Limits = Limits()
    fail: Literal["open", "closed"] = Field(
        default="open", description="without Redis: go on with a local share, or refuse"
    )
    fallback: bool = Field(
        default=False, description="other pools may answer its requests, as `pools[].fallback` says"
    )
    debug_headers: bool = Field(default=False, description="send the x-forebay-* diagnostics")


class SlaTimeouts(Section):
    """Instead of the pool's own timeouts."""

    connect: Duration | None = Field(default=None, gt=0, description="to make a connection")
    first_byte: Duration | None = Field(
        default=None, gt=0, description="from sending to the first byte"
    )
    idle: Duration | None = Field(
        default=None, gt=0, description="longest gap between bytes of an answer"
    )
    total: Duration | None = Field(default=None, gt=0, description="a whole answer")


class Sla(Section):
    """One SLA class: what its requests are promised and allowed."""

    ttft: Duration | None = Field(
        default=None, gt=0, description="target: received to first output token"
    )
    tpot: Duration | None = Field(default=None, gt=0, description="target: time per output token")
    deadline: Duration | None = Field(
        default=None, gt=0, description="receipt to first byte; default: the pool's"
    )
    longest_wait: Duration | None = Field(
        default=None, gt=0, description="in the queue; 429 past it and a tenth"
    )
    weight: Weight = Field(default=1.0, description="multiplies the tenant's weight")
    timeouts: SlaTimeouts = SlaTimeouts()


class Price(Section):
    """What a model costs, in money per million tokens."""

    prompt: float = Field(default=0.0, ge=0, description="prompt tokens")
    cached: float | None = Field(
        default=None, ge=0, description="prompt tokens the engine had cached; default: as `prompt`"
    )
    output: float = Field(default=0.0, ge=0, description="output tokens")


class State(Section):
    """Where counters and usage are kept."""

    url: StateUrl | None = Field(
        default=None, description="Redis or Valkey, as redis://host:6379/0; default: this process"
    )
    timeout: Duration = Field(
        default=0.04, gt=0, description="longest wait for an answer of `url`; past it it is away"
    )
    secret: Secret | None = Field(default=None, description="same on all replicas; salts names")
    ledger: str | None = Field(
        default=None,
        min_length=1,
        description="SQLite file of the usage ledger; default: forebay-usage.db beside this file",
    )
    experiments: str | None = Field(
        default=None,
        min_length=1,
        description="folder that experiments are kept in; default: forebay-experiments beside "
        "this file",
    )


class Jwt(Section):
    """Tokens of an OpenID Connect issuer; needs the `oidc` extra."""

    issuer: str = Field(min_length=1, description="`iss` that a token must have")
    audience: str = Field(min_length=1, description="`aud` that a token must have")
    jwks_url: Url = Field(description="where the issuer's public keys are read")
    tenant_claim: str = Field(
        default="tenant", min_length=1, description="claim that holds the tenant's name"
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"), min_length=1, description="signatures that are accepted"
    )


class Auth(Section):
    """Ways to say who calls, beside API keys."""

    jwt: Jwt | None = Field(default=None, description="bearer tokens signed by an issuer")


def resolve(tenant: Tenant, plans: Mapping[str, Plan]) -> Tenant:
    """Return a tenant with its plan's settings where it has none of its own.

    A plan that is not there changes nothing; the loader tells of it.
    """
    plan = plans.get(tenant.plan or "")
    if plan is None:
        return tenant
    own = tenant.model_fields_set
    taken: dict[str, Any] = {
        key: getattr(plan, key) for key in plan.model_fields_set - own - {"limits", "reserve"}
    }
    limits = {key: getattr(tenant.limits, key) for key in tenant.limits.model_fields_set}
    merged = plan.limits.model_copy(update=limits)
    return tenant.model_copy(update={**taken, "limits": merged})


def reserve_of(tenant: Tenant, plans: Mapping[str, Plan]) -> tuple[str, float]:
    """Return the name and the share of the reserve a tenant draws on; ("", 0) of none."""
    if "reserve" in tenant.model_fields_set:
        return (f"tenant {tenant.name}", tenant.reserve) if tenant.reserve else ("", 0.0)
    plan = plans.get(tenant.plan or "")
    if plan is None or not plan.reserve:
        return "", 0.0
    return f"plan {tenant.plan}", plan.reserve
