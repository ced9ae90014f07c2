"""Takes down what a pool knows of prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.prefixcache.slots import Source

from .telemetry.snapshot import (
    GuardStatus,
    PrefixSource,
    PrefixStatus,
    ShareStatus,
    SharingStatus,
    WarmingStatus,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forebay.prefixcache.owners import Owners
    from forebay.scheduler.avalanche import HitRateGuard

    from .prefix import PoolPrefix
    from .prefix_sharing import Sharing
    from .warming import Warmer


def prefix_status(prefix: PoolPrefix, endpoints: Iterable[str], now: float) -> PrefixStatus:
    """Copy what is known, and how true it was."""
    learned, cutter = prefix.learned, prefix.cutter
    prompts = {"same": prefix.placements.counted, "other": prefix.placements.miscounted}
    if cutter is not None:
        prompts |= {"late": cutter.late, "failed": cutter.failed}
    return PrefixStatus(
        blocks=len(prefix.index),
        predicted_tokens=prefix.placements.predicted_tokens,
        confirmed=learned.confirmed,
        ghosts=learned.ghosts,
        evicted_blocks=learned.evicted,
        emptied=learned.emptied,
        prompts={} if cutter is None else prompts,
        sources=tuple(_source(prefix, endpoint, now) for endpoint in endpoints),
        prompt_tokens=dict(prefix.placements.numbers.prompts),
        hit_tokens=dict(prefix.placements.numbers.hits),
        saved_s=prefix.placements.numbers.saved_s,
        shares=() if learned.owners is None else tuple(_shares(learned.owners)),
        guard=None if prefix.guard is None else _guard(prefix.guard),
        warming=None if prefix.warmer is None else _warming(prefix.warmer),
    )


def _shares(owners: Owners) -> Iterator[ShareStatus]:
    blocks, evicted, refused = owners.blocks(), owners.evicted, owners.refused
    for tenant in sorted({*blocks, *evicted, *refused}):
        counts = (each.get(tenant, 0) for each in (blocks, evicted, refused))
        yield ShareStatus(tenant, *counts)


def _guard(guard: HitRateGuard) -> GuardStatus:
    return GuardStatus(guard.slowed, guard.times, guard.recent, guard.usual, guard.share)


def _warming(warmer: Warmer) -> WarmingStatus:
    hot = warmer.hot
    return WarmingStatus(len(hot), hot.size, warmer.left, dict(warmer.results), warmer.tokens)


def sharing_status(sharing: Sharing | None) -> SharingStatus:
    """Copy how the sharing with other replicas does."""
    if sharing is None:
        return SharingStatus()
    return SharingStatus(
        sharing.away, sharing.times_away, sharing.heard, len(sharing.outbox), sharing.outbox.dropped
    )


def _source(prefix: PoolPrefix, endpoint: str, now: float) -> PrefixSource:
    oldest, rate = prefix.learned.oldest_s(endpoint, now), prefix.placements.prefill_rate(endpoint)
    told = prefix.index.held(endpoint, Source.EXACT)
    expected = prefix.index.held(endpoint)
    events = prefix.events.get(endpoint)
    if events is None:
        return PrefixSource(endpoint, "learned", told, expected, oldest_s=oldest, prefill_rate=rate)
    named = endpoint in prefix.learned.told
    source = {"live": "exact" if named else "learned"}.get(events.status, events.status)
    count = events.count
    faults = {
        "gap": count.gaps,
        "restart": count.restarts,
        "unread": count.unread,
        "orphan": count.orphans,
    }
    return PrefixSource(
        endpoint,
        source,
        told,
        expected,
        count.events,
        oldest_s=oldest,
        prefill_rate=rate,
        faults=faults,
    )
