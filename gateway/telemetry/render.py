"""Turns copied counts and a snapshot into Prometheus text. Loaded by the first scrape."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from . import catalog
from .labels import SOURCES, STATES, state_label
from .snapshot import PHASES_OF_EXPERIMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from .catalog import Metric
    from .counts import Copied
    from .histogram import HistogramCopy
    from .labels import Labels
    from .snapshot import (
        EndpointStatus,
        GuardStatus,
        LengthStatus,
        PrefixSource,
        PrefixStatus,
        QueueStatus,
        QuotaStatus,
        Snapshot,
        WarmingStatus,
    )


def render_text(accept: str, copied: Copied, snapshot: Snapshot) -> tuple[str, bytes]:
    """Return content type and text in the format that `accept` asks for."""
    registry = CollectorRegistry()
    registry.register(_Copy(copied, snapshot))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    # The library's types say Collector where its own code passes a registry, as we do.
    return content_type, encode(cast("Collector", registry))


class _Copy(Collector):
    """Hands the library what was copied."""

    def __init__(self, copied: Copied, snapshot: Snapshot) -> None:
        self._copied = copied
        self._snapshot = snapshot

    def describe(self) -> list[Family]:
        """Say nothing, so that registering does not collect once more."""
        return []

    def collect(self) -> Iterator[Family]:
        for metric, counts in self._copied.counters:
            yield _counter(metric, counts)
        for metric, histograms in self._copied.histograms:
            yield _histogram(metric, histograms)
        yield from _gauges(self._snapshot)


def _counter(metric: Metric, counts: Mapping[Labels, float]) -> Family:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in counts.items():
        family.add_metric(labels, value)
    return family


def _gauge(metric: Metric, values: Mapping[Labels, float]) -> Family:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, histograms: Mapping[Labels, HistogramCopy]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, copy in histograms.items():
        bounds = [*map(str, copy.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(copy.counts)), strict=True))
        family.add_metric(labels, buckets, copy.total)
    return family


def _gauges(snapshot: Snapshot) -> Iterator[Family]:
    yield from _pool_gauges(snapshot)
    yield from _endpoint_gauges(snapshot)
    for metric, value in (
        (catalog.CLIENT_CONNECTIONS, snapshot.client_connections),
        (catalog.BUFFERED, snapshot.buffered_bytes),
        (catalog.BUFFERED_LIMIT, snapshot.buffered_limit_bytes),
        (catalog.SETTLEMENTS, snapshot.settlements_waiting),
        (catalog.CONFIG_OK, snapshot.config_ok),
        (catalog.READY, snapshot.ready),
        (catalog.DRAINING, snapshot.draining),
        (catalog.LOOP_PAUSE_MAX, snapshot.loop_pause_max_s),
    ):
        yield _gauge(metric, {(): value})
    yield _counter(catalog.CHORES_DROPPED, {(): snapshot.chores_dropped})
    yield _counter(catalog.LOG_DROPPED, {(): snapshot.log_lines_dropped})
    yield _counter(catalog.TRACES_DROPPED, {(): snapshot.traces_dropped})
    yield from _quota(snapshot.quota)
    yield from _experiments(snapshot)
    yield _gauge(catalog.BUILD, {(snapshot.version,): 1})


def _quota(quota: QuotaStatus) -> Iterator[Family]:
    yield _counter(catalog.QUOTA_REFUSED, quota.refused)
    yield _counter(catalog.QUOTA_LOCAL, {(name,): n for name, n in quota.admitted_here.items()})
    yield _gauge(catalog.QUOTA_AWAY, {(): quota.away})
    yield _counter(catalog.QUOTA_TIMES_AWAY, {(): quota.times_away})
    yield _gauge(catalog.QUOTA_REPLICAS, {(): quota.replicas})
    yield _gauge(catalog.QUOTA_WAITING, {(): quota.waiting})
    yield _counter(catalog.USAGE_LOST, {(): quota.usage_lost})


def _experiments(snapshot: Snapshot) -> Iterator[Family]:
    running = snapshot.experiments
    shares = {(e.name, arm): share for e in running for arm, share in e.shares.items()}
    yield _gauge(catalog.ARM_SHARE, shares)
    phases = {(e.name, p): float(e.phase == p) for e in running for p in PHASES_OF_EXPERIMENTS}
    yield _gauge(catalog.EXPERIMENT_PHASE, phases)
    yield _gauge(catalog.EXPERIMENT_DECISIONS, {(e.name,): e.decisions for e in running})
    copies = {(e.name, result): n for e in running for result, n in e.copies.items()}
    yield _counter(catalog.SHADOW_COPIES, copies)
    yield _gauge(catalog.EXPERIMENTS_AWAY, {(): snapshot.experiments_away})
    sharing = snapshot.prefix_sharing
    yield _gauge(catalog.PREFIX_AWAY, {(): sharing.away})
    yield _counter(catalog.PREFIX_HEARD, {(): sharing.heard})
    yield _counter(catalog.PREFIX_UNTOLD, {(): sharing.dropped_blocks})


_QUEUE_GAUGES: tuple[tuple[Metric, Callable[[QueueStatus], float | None]], ...] = (
    (catalog.OVERDUE, lambda q: q.overdue),
    (catalog.SPREAD, lambda q: q.spread),
    (catalog.WATERMARK, lambda q: q.watermark),
)
_QUEUE_COUNTERS: tuple[tuple[Metric, Callable[[QueueStatus], int]], ...] = (
    (catalog.FORCED, lambda q: q.forced),
    (catalog.RECALLS, lambda q: q.recalls),
    (catalog.DISPLACED, lambda q: q.displaced),
    (catalog.GAVE_UP, lambda q: q.gave_up),
    (catalog.FORETOLD, lambda q: q.foretold),
    (catalog.STARVED, lambda q: q.starved),
    (catalog.RANK_CHANGES, lambda q: q.rank_changes),
)


def _pool_gauges(snapshot: Snapshot) -> Iterator[Family]:
    pools = snapshot.pools
    yield _gauge(catalog.QUEUED, {(pool.name,): pool.queued for pool in pools})
    yield _gauge(catalog.QUEUED_BYTES, {(pool.name,): pool.queued_bytes for pool in pools})
    yield _gauge(catalog.OLDEST_WAIT, {(pool.name,): pool.oldest_wait_s for pool in pools})
    waiting = {(p.name, sla, who): n for p in pools for sla, who, n in p.queue.waiting}
    yield _gauge(catalog.CLASS_QUEUED, waiting)
    oldest = {(p.name, sla): age for p in pools for sla, age in p.queue.oldest_s}
    yield _gauge(catalog.CLASS_OLDEST, oldest)
    reserved = {(p.name, name): count for p in pools for name, count in p.queue.reserved}
    yield _gauge(catalog.RESERVED, reserved)
    for metric, read in _QUEUE_GAUGES:
        values = {(pool.name,): read(pool.queue) for pool in pools}
        yield _gauge(metric, {labels: v for labels, v in values.items() if v is not None})
    for metric, count in _QUEUE_COUNTERS:
        yield _counter(metric, {(pool.name,): count(pool.queue) for pool in pools})
    yield from _prefixes({p.name: p.prefix for p in pools if p.prefix is not None})
    yield from _length_gauges([(p.name, p.length) for p in pools if p.length is not None])
    ups = {(p.name, kind): ratio for p in pools for kind, ratio in p.speed_ups.items()}
    yield _gauge(catalog.SPEC_SPEED_UP, ups)
    sent = {(p.name, str(did).lower()): n for p in pools for did, n in p.speculated.items()}
    yield _counter(catalog.SPEC_REQUESTS, sent)


def _prefixes(pools: Mapping[str, PrefixStatus]) -> Iterator[Family]:
    yield _gauge(catalog.PREFIX_BLOCKS, {(n,): p.blocks for n, p in pools.items()})
    yield _counter(catalog.PREFIX_PREDICTED, {(n,): p.predicted_tokens for n, p in pools.items()})
    hits = {(n, "confirmed"): p.confirmed for n, p in pools.items()}
    hits |= {(n, "ghost"): p.ghosts for n, p in pools.items()}
    yield _counter(catalog.PREFIX_HITS, hits)
    yield _counter(catalog.PREFIX_EVICTED, {(n,): p.evicted_blocks for n, p in pools.items()})
    yield _counter(catalog.PREFIX_EMPTIED, {(n,): p.emptied for n, p in pools.items()})
    cut = {(n, what): count for n, p in pools.items() for what, count in p.prompts.items()}
    yield _counter(catalog.PREFIX_PROMPTS, cut)
    sources = [((n, s.endpoint), s) for n, p in pools.items() for s in p.sources]
    states = {(*at, name): float(s.source == name) for at, s in sources for name in SOURCES}
    yield _gauge(catalog.PREFIX_SOURCE, states)
    held = {(*at, "told"): float(s.told_blocks) for at, s in sources}
    held |= {(*at, "expected"): float(s.expected_blocks) for at, s in sources}
    yield _gauge(catalog.PREFIX_HELD, held)
    yield _counter(catalog.PREFIX_EVENTS, {at: s.events for at, s in sources})
    faults = {(*at, kind): count for at, s in sources for kind, count in s.faults.items()}
    yield _counter(catalog.PREFIX_FAULTS, faults)
    yield from _prefix_numbers(pools)
    yield from _warming({n: p.warming for n, p in pools.items() if p.warming is not None})


def _prefix_numbers(pools: Mapping[str, PrefixStatus]) -> Iterator[Family]:
    for metric, read in _SOURCE_GAUGES:
        values = {(n, s.endpoint): read(s) for n, p in pools.items() for s in p.sources}
        yield _gauge(metric, {labels: v for labels, v in values.items() if v is not None})
    prompts = {
        (n, source): count for n, p in pools.items() for source, count in p.prompt_tokens.items()
    }
    yield _counter(catalog.PREFIX_PROMPT_TOKENS, prompts)
    hits = {(n, *key): count for n, p in pools.items() for key, count in p.hit_tokens.items()}
    yield _counter(catalog.PREFIX_HIT_TOKENS, hits)
    yield _counter(catalog.PREFIX_SAVED, {(n,): p.saved_s for n, p in pools.items()})
    shares = {(n, s.tenant): s for n, p in pools.items() for s in p.shares}
    yield _gauge(catalog.PREFIX_TENANT_BLOCKS, {at: s.blocks for at, s in shares.items()})
    yield _counter(catalog.PREFIX_TENANT_EVICTED, {at: s.evicted for at, s in shares.items()})
    yield _counter(catalog.PREFIX_TENANT_REFUSED, {at: s.refused for at, s in shares.items()})
    yield from _guards({n: p.guard for n, p in pools.items() if p.guard is not None})


_SOURCE_GAUGES: tuple[tuple[Metric, Callable[[PrefixSource], float | None]], ...] = (
    (catalog.PREFIX_OLDEST, lambda source: source.oldest_s),
    (catalog.PREFIX_PREFILL_RATE, lambda source: source.prefill_rate),
)


def _guards(guards: Mapping[str, GuardStatus]) -> Iterator[Family]:
    ratios = {(n, "recent"): g.recent for n, g in guards.items()}
    ratios |= {(n, "usual"): g.usual for n, g in guards.items()}
    yield _gauge(catalog.PREFIX_HIT_RATIO, ratios)
    yield _gauge(catalog.PREFIX_SLOWED, {(n,): float(g.slowed) for n, g in guards.items()})
    yield _gauge(catalog.PREFIX_INTAKE_SHARE, {(n,): g.share for n, g in guards.items()})
    yield _counter(catalog.PREFIX_SLOWDOWNS, {(n,): g.times for n, g in guards.items()})


def _warming(pools: Mapping[str, WarmingStatus]) -> Iterator[Family]:
    yield _gauge(catalog.PREFIX_HOT, {(n,): w.hot for n, w in pools.items()})
    yield _gauge(catalog.PREFIX_HOT_BYTES, {(n,): w.hot_bytes for n, w in pools.items()})
    left = {(n, endpoint): count for n, w in pools.items() for endpoint, count in w.left.items()}
    yield _gauge(catalog.PREFIX_WARMING, left)
    results = {(n, result): count for n, w in pools.items() for result, count in w.results.items()}
    yield _counter(catalog.PREFIX_WARMED, results)
    yield _counter(catalog.PREFIX_WARM_TOKENS, {(n,): w.tokens for n, w in pools.items()})


def _length_gauges(pools: Sequence[tuple[str, LengthStatus]]) -> Iterator[Family]:
    results = {(name, what): count for name, own in pools for what, count in own.results}
    yield _counter(catalog.PREDICTIONS, results)
    yield _counter(catalog.PREDICTION_TIME, {(name,): own.seconds for name, own in pools})
    yield _gauge(catalog.PREDICTOR_TRUSTED, {(name,): float(own.trusted) for name, own in pools})
    for metric, read in _LENGTH_SCORES:
        values = {(name,): read(own) for name, own in pools}
        yield _gauge(metric, {labels: v for labels, v in values.items() if v is not None})


_LENGTH_SCORES: tuple[tuple[Metric, Callable[[LengthStatus], float | None]], ...] = (
    (catalog.PREDICTOR_ACCURACY, lambda own: own.accuracy),
    (catalog.PREDICTOR_TAU, lambda own: own.tau),
)


_ENDPOINT_GAUGES: tuple[tuple[Metric, Callable[[EndpointStatus], float | None]], ...] = (
    (catalog.IN_FLIGHT, lambda e: e.in_flight),
    (catalog.LIMIT, lambda e: e.limit),
    (catalog.IN_FLIGHT_TOKENS, lambda e: e.in_flight_tokens),
    (catalog.ENDPOINT_CONNECTIONS, lambda e: e.connections),
    (catalog.RUNNING, lambda e: e.running),
    (catalog.WAITING, lambda e: e.waiting),
    (catalog.KV_USE, lambda e: e.kv_use),
    (catalog.LOAD_AGE, lambda e: e.load_age_s),
    (catalog.SPEC_ACCEPT_RATE, lambda e: e.speculation and e.speculation.accept_rate),
    (catalog.SPEC_ACCEPTED, lambda e: e.speculation and e.speculation.accepted_a_draft),
    (catalog.SPEC_DRIFT, lambda e: e.speculation and e.speculation.drift),
    (catalog.SPEC_PAYS, lambda e: e.speculation and float(e.speculation.pays)),
)


def _endpoint_gauges(snapshot: Snapshot) -> Iterator[Family]:
    endpoints = [((p.name, e.name), e) for p in snapshot.pools for e in p.endpoints]
    for metric, read in _ENDPOINT_GAUGES:
        values = {labels: read(endpoint) for labels, endpoint in endpoints}
        yield _gauge(metric, {labels: v for labels, v in values.items() if v is not None})
    yield _gauge(
        catalog.STATE,
        {
            (*labels, state): float(state == state_label(endpoint.state))
            for labels, endpoint in endpoints
            for state in STATES
        },
    )
