"""Takes down what a pool knows of prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.prefixcache.index import Source

from .telemetry.snapshot import PrefixSource, PrefixStatus, SharingStatus, WarmingStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .prefix import PoolPrefix
    from .prefix_sharing import Sharing
    from .warming import Warmer


def prefix_status(prefix: PoolPrefix, endpoints: Iterable[str]) -> PrefixStatus:
    """Copy what is known, and how true it was."""
    learned, cutter = prefix.learned, prefix.cutter
    prompts = {"same": prefix.counted, "other": prefix.miscounted}
    if cutter is not None:
        prompts |= {"late": cutter.late, "failed": cutter.failed}
    return PrefixStatus(
        blocks=len(prefix.index),
        predicted_tokens=prefix.predicted_tokens,
        confirmed=learned.confirmed,
        ghosts=learned.ghosts,
        evicted_blocks=learned.evicted,
        emptied=learned.emptied,
        prompts={} if cutter is None else prompts,
        sources=tuple(_source(prefix, endpoint) for endpoint in endpoints),
        warming=None if prefix.warmer is None else _warming(prefix.warmer),
    )


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


def _source(prefix: PoolPrefix, endpoint: str) -> PrefixSource:
    told = prefix.index.held(endpoint, Source.EXACT)
    expected = prefix.index.held(endpoint)
    events = prefix.events.get(endpoint)
    if events is None:
        return PrefixSource(endpoint, "learned", told, expected)
    named = endpoint in prefix.learned.told
    source = {"live": "exact" if named else "learned"}.get(events.status, events.status)
    count = events.count
    faults = {
        "gap": count.gaps,
        "restart": count.restarts,
        "unread": count.unread,
        "orphan": count.orphans,
    }
    return PrefixSource(endpoint, source, told, expected, count.events, faults)
