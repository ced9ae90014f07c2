"""What is read of the knowledge of prefixes, where a pool has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .labels import SOURCES
from .reading import Scope, counter, gauge, named, one_of

if TYPE_CHECKING:
    from .snapshot import (
        GuardStatus,
        PrefixSource,
        PrefixStatus,
        WarmingStatus,
    )

PREFIXES: Scope[PrefixStatus] = Scope(
    ("pool",),
    lambda s: [((p.name,), p.prefix) for p in s.pools if p.prefix],
    (
        gauge(
            "forebay_prefix_blocks",
            "distinct blocks that endpoints are expected to hold",
            lambda p: p.blocks,
        ),
        counter(
            "forebay_prefix_predicted_tokens_total",
            "prompt tokens predicted to be cached",
            lambda p: p.predicted_tokens,
        ),
        counter(
            "forebay_prefix_hits_total",
            "predicted hits by what the engine then said: confirmed or ghost",
            lambda p: [(("confirmed",), p.confirmed), (("ghost",), p.ghosts)],
            by=("outcome",),
        ),
        counter(
            "forebay_prefix_evicted_blocks_total",
            "expected blocks that gave way to others",
            lambda p: p.evicted_blocks,
        ),
        counter(
            "forebay_prefix_emptied_total",
            "caches found to be empty by cached tokens alone",
            lambda p: p.emptied,
        ),
        counter(
            "forebay_prefix_prompts_total",
            "prompts to be cut into tokens: as many as the engine counted or others, late, or "
            "failed",
            lambda p: named(p.prompts.items()),
            by=("outcome",),
        ),
        counter(
            "forebay_prefix_prompt_tokens_total",
            "prompt tokens of answers that told their cached ones, by how it was known what "
            "lies there",
            lambda p: named(p.prompt_tokens.items()),
            by=("source",),
        ),
        counter(
            "forebay_prefix_hit_tokens_total",
            "cached tokens of those, as engines say; padding are hits under 128 tokens, "
            "business the rest",
            lambda p: p.hit_tokens.items(),
            by=("source", "kind"),
        ),
        counter(
            "forebay_prefix_saved_seconds_total",
            "prefill that cached tokens spared, by each endpoint's measured rate",
            lambda p: p.saved_s,
        ),
        gauge(
            "forebay_prefix_tenant_blocks",
            "expected blocks of a tenant, all endpoints together; absent with fewer than two "
            "tenants",
            lambda p: [((s.tenant,), s.blocks) for s in p.shares],
            by=("tenant",),
        ),
        counter(
            "forebay_prefix_tenant_evicted_blocks_total",
            "expected blocks that gave way first, since their tenant had more than its share",
            lambda p: [((s.tenant,), s.evicted) for s in p.shares],
            by=("tenant",),
        ),
        counter(
            "forebay_prefix_tenant_refused_blocks_total",
            "new blocks that were not entered, since their tenant brought too many",
            lambda p: [((s.tenant,), s.refused) for s in p.shares],
            by=("tenant",),
        ),
    ),
)

PREFIX_SOURCES: Scope[PrefixSource] = Scope(
    ("pool", "endpoint"),
    lambda s: [
        ((p.name, each.endpoint), each) for p in s.pools if p.prefix for each in p.prefix.sources
    ],
    (
        gauge(
            "forebay_prefix_source",
            "1 for how it is known what an endpoint holds, else 0; silent is a fault",
            lambda s: one_of(SOURCES, s.source),
            by=("source",),
        ),
        gauge(
            "forebay_prefix_endpoint_blocks",
            "blocks of an endpoint: told by its events, or expected",
            lambda s: [(("told",), s.told_blocks), (("expected",), s.expected_blocks)],
            by=("source",),
        ),
        counter(
            "forebay_prefix_events_total", "KV events read since it is watched", lambda s: s.events
        ),
        counter(
            "forebay_prefix_event_faults_total",
            "numbers missing, new processes, events not read, blocks whose beginning was missed",
            lambda s: named(s.faults.items()),
            by=("kind",),
        ),
        gauge(
            "forebay_prefix_oldest_block_seconds",
            "for how long the least recently used block expected at an endpoint was not used",
            lambda s: s.oldest_s,
        ),
        gauge(
            "forebay_prefix_prefill_tokens_per_second",
            "prompt tokens a second that an endpoint prefills, measured on streams; absent "
            "until known",
            lambda s: s.prefill_rate,
        ),
    ),
)

PREFIX_GUARDS: Scope[GuardStatus] = Scope(
    ("pool",),
    lambda s: [((p.name,), p.prefix.guard) for p in s.pools if p.prefix and p.prefix.guard],
    (
        gauge(
            "forebay_prefix_hit_ratio",
            "share of prompt tokens that hit: recent (15 s) and usual (half an hour); with a "
            "guard only",
            lambda g: [(("recent",), g.recent), (("usual",), g.usual)],
            by=("window",),
        ),
        gauge(
            "forebay_prefix_intake_slowed",
            "1 while intake is slowed since the hit rate collapsed",
            lambda g: g.slowed,
        ),
        gauge(
            "forebay_prefix_intake_share_ratio",
            "share of their places that endpoints may use",
            lambda g: g.share,
        ),
        counter(
            "forebay_prefix_slowdowns_total",
            "times that intake was slowed by the hit rate",
            lambda g: g.times,
        ),
    ),
)

WARMINGS: Scope[WarmingStatus] = Scope(
    ("pool",),
    lambda s: [((p.name,), p.prefix.warming) for p in s.pools if p.prefix and p.prefix.warming],
    (
        gauge(
            "forebay_prefix_hot_prefixes",
            "prefixes whose text is kept, to warm endpoints with",
            lambda w: w.hot,
        ),
        gauge("forebay_prefix_hot_bytes", "text of those", lambda w: w.hot_bytes),
        gauge(
            "forebay_prefix_warming_prompts",
            "prompts still to be sent to an endpoint that is being warmed",
            lambda w: named(w.left.items()),
            by=("endpoint",),
        ),
        counter(
            "forebay_prefix_warm_prompts_total",
            "prompts sent to warm endpoints: warmed, failed, gave_way (to callers, sent again "
            "later) or held (there already)",
            lambda w: named(w.results.items()),
            by=("result",),
        ),
        counter(
            "forebay_prefix_warm_tokens_total",
            "prompt tokens that engines prefilled to be warm",
            lambda w: w.tokens,
        ),
    ),
)
