"""The status and readiness as JSON, and how they are made of a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .telemetry.counts import PoolTotals
    from .telemetry.histogram import HistogramCopy
    from .telemetry.snapshot import LengthStatus, PoolStatus, PrefixStatus, Snapshot


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


class LengthChange(_Model):
    """How one model's answers differ from those that trust began with, beside what was said."""

    model: str
    answers: int = Field(description="of those that trust began with")
    sum: float = Field(description="cumulative sum of differences; at 29 trust is lost")
    psi: float | None = Field(description="population stability index; over .25 is another one")
    ks: float | None = Field(description="Kolmogorov-Smirnov distance, 0 to 1")


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
    changes: list[LengthChange]


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
    unknown: list[str] = Field(description="pools that were asked for and are not there")


def status_of(snapshot: Snapshot, totals: Mapping[str, PoolTotals], now: float) -> Status:
    """Return the status; `now` is Unix time."""
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
        endpoints=[Endpoint.model_validate(each) for each in pool.endpoints],
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
    own = {"results", "changes"}
    fields = {name: getattr(length, name) for name in Length.model_fields if name not in own}
    changes = [LengthChange.model_validate(each) for each in length.changes]
    return Length(**fields, results=dict(length.results), changes=changes)


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


def readiness_of(snapshot: Snapshot, wanted: list[str] | None) -> Readiness:
    """Say whether requests may come; with `wanted`, for these pools."""
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
        unknown=sorted(set(wanted or ()) - pools.keys()),
    )
