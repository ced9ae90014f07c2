"""What is read of pools: what waits there, and what predicts how long it will take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .reading import Scope, counter, gauge, named

if TYPE_CHECKING:
    from .snapshot import LengthStatus, PoolStatus, QueueStatus

POOLS: Scope[PoolStatus] = Scope(
    ("pool",),
    lambda s: [((p.name,), p) for p in s.pools],
    (
        gauge(
            "forebay_spec_speedup_ratio",
            "time per output token at plain endpoints over that at speculative ones, by kind "
            "of request",
            lambda p: named(p.speed_ups.items()),
            by=("kind",),
        ),
        gauge(
            "forebay_spec_speedup_drift",
            "that ratio less its average of about a week, by kind of request; negative where "
            "drafts came to less",
            lambda p: named(p.speed_up_drifts.items()),
            by=("kind",),
        ),
        counter(
            "forebay_spec_requests_total",
            "requests that ended in a pool with endpoints that speculate, by whether theirs did",
            lambda p: [((str(did).lower(),), n) for did, n in p.speculated.items()],
            by=("speculative",),
        ),
        gauge("forebay_queue_requests", "requests waiting", lambda p: p.queued),
        gauge("forebay_queue_bytes", "bodies of the requests waiting", lambda p: p.queued_bytes),
        gauge(
            "forebay_queue_oldest_seconds",
            "how long the oldest has waited",
            lambda p: p.oldest_wait_s,
        ),
    ),
)

QUEUES: Scope[QueueStatus] = Scope(
    ("pool",),
    lambda s: [((p.name,), p.queue) for p in s.pools],
    (
        gauge(
            "forebay_class_queue_requests",
            "requests waiting, by whose",
            lambda q: [((sla, tenant), n) for sla, tenant, n in q.waiting],
            by=("sla", "tenant"),
        ),
        gauge(
            "forebay_class_oldest_seconds",
            "how long the oldest of a class has waited",
            lambda q: named(q.oldest_s),
            by=("sla",),
        ),
        gauge(
            "forebay_reserve_in_flight_requests",
            "places in use of a reserve, by whose it is",
            lambda q: named(q.reserved),
            by=("reserve",),
        ),
        gauge(
            "forebay_overdue_requests",
            "requests waiting past their longest wait",
            lambda q: q.overdue,
        ),
        gauge(
            "forebay_virtual_time_spread",
            "cost over weight between the waiting tenants that got most and least; absent "
            "without turns",
            lambda q: q.spread,
        ),
        gauge(
            "forebay_watermark_level",
            "watermarks in force, 0 is none; absent without watermarks",
            lambda q: q.watermark,
        ),
        counter(
            "forebay_forced_dispatches_total",
            "overdue requests put before the ordering's choice",
            lambda q: q.forced,
        ),
        counter(
            "forebay_recalls_total",
            "placements called back for a higher class before any byte",
            lambda q: q.recalls,
        ),
        counter(
            "forebay_displaced_requests_total",
            "waiting requests refused for a higher class",
            lambda q: q.displaced,
        ),
        counter(
            "forebay_gave_up_requests_total",
            "waiting requests refused since they could not start in time",
            lambda q: q.gave_up,
        ),
        counter(
            "forebay_foretold_requests_total",
            "new requests refused since they would have waited too long",
            lambda q: q.foretold,
        ),
        counter(
            "forebay_starved_requests_total",
            "requests started after their time; must be 0",
            lambda q: q.starved,
        ),
        counter(
            "forebay_rank_changes_total",
            "waiting requests whose rank has changed",
            lambda q: q.rank_changes,
        ),
    ),
)

PREDICTORS: Scope[LengthStatus] = Scope(
    ("pool",),
    lambda s: [((p.name,), p.length) for p in s.pools if p.length],
    (
        counter(
            "forebay_predictions_total",
            "requests by what reading made of them: predicted, cached, idle (never waited), "
            "large, late, placed (before it was read) or failed",
            lambda own: named(own.results),
            by=("result",),
        ),
        counter(
            "forebay_prediction_seconds_total",
            "time spent on reading prompts, off the loop",
            lambda own: own.seconds,
        ),
        gauge(
            "forebay_predictor_trusted",
            "1 while predicted lengths are believed, else 0",
            lambda own: own.trusted,
        ),
        gauge(
            "forebay_predictor_bucket_accuracy_ratio",
            "of the last outcomes, in the right bucket",
            lambda own: own.accuracy,
        ),
        gauge(
            "forebay_predictor_tau",
            "rank correlation of the last outcomes with what was predicted",
            lambda own: own.tau,
        ),
    ),
)
