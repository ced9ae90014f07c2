"""Takes a snapshot of the live pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .endpoint import shown_state
from .prefix_status import prefix_status
from .telemetry.snapshot import EndpointStatus, PoolStatus, QueueStatus, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.scheduler.dispatch import Dispatcher

    from .endpoint import Endpoint
    from .pools import Pool


def take_snapshot(pools: Iterable[Pool], *, now: float, **rest: Any) -> Snapshot:
    """Copy what the pools are; `rest` is the other fields of Snapshot."""
    return Snapshot(pools=tuple(_pool(pool, now) for pool in pools), **rest)


def _pool(pool: Pool, now: float) -> PoolStatus:
    dispatcher, prefix, drafts = pool.dispatcher, pool.prefix, pool.speculation
    reading = pool.arrangement.reading
    return PoolStatus(
        name=pool.name,
        models=tuple(pool.models),
        endpoints=tuple(_endpoint(pool, each, now) for each in pool.endpoints.values()),
        queued=dispatcher.queued,
        queued_bytes=dispatcher.queued_bytes,
        oldest_wait_s=dispatcher.oldest_wait(now),
        queue=_queue(dispatcher, now),
        prefix=None if prefix is None else prefix_status(prefix, pool.endpoints, now),
        length=None if reading is None else reading.status(),
        speed_ups={} if drafts is None else drafts.speed_ups(),
        speed_up_drifts={} if drafts is None else drafts.drifts(),
        speculated={} if drafts is None else dict(drafts.sent),
    )


def _queue(dispatcher: Dispatcher, now: float) -> QueueStatus:
    waiting, guards, admission = dispatcher.waiting, dispatcher.guards, dispatcher.admission
    return QueueStatus(
        waiting=tuple((sla, tenant, n) for (sla, tenant), n in waiting.counts.items()),
        oldest_s=tuple((sla, max(0.0, now - came)) for sla, came in waiting.oldest().items()),
        reserved=() if (r := dispatcher.reserves) is None else tuple(r.held.items()),
        overdue=0 if guards is None else guards.overdue,
        spread=getattr(dispatcher.ordering, "spread", None),
        watermark=None if admission is None else admission.level,
        forced=0 if guards is None else guards.forced,
        recalls=dispatcher.recalls,
        displaced=dispatcher.displaced,
        gave_up=dispatcher.gave_up,
        foretold=dispatcher.foretold,
        starved=0 if guards is None else guards.starved,
        rank_changes=getattr(dispatcher.ordering, "rank_changes", 0),
    )


def _endpoint(pool: Pool, endpoint: Endpoint, now: float) -> EndpointStatus:
    view, probe, drafts = endpoint.view, endpoint.probe, pool.speculation
    return EndpointStatus(
        name=endpoint.name,
        engine=view.engine,
        state=shown_state(endpoint, now),
        usable=view.usable,
        why_out=endpoint.health.why_out,
        in_flight=view.in_flight,
        limit=view.in_flight + max(0, view.room),
        in_flight_tokens=view.in_flight_tokens,
        connections=getattr(endpoint.opener, "open_connections", 0),
        running=view.running,
        waiting=view.waiting,
        kv_use=view.kv_use,
        load_age_s=None if view.load_at is None else now - view.load_at,
        version=None if probe is None else probe.version,
        speculation=None if drafts is None else drafts.status(endpoint),
    )
