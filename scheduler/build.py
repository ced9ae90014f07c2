"""Makes a pool's dispatcher from plain settings: the gateway and the simulator both come here.

So what runs live is what is simulated, part by part.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads it at run time
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

import msgspec

from forebay.policies.double_queue import DoubleQueue
from forebay.policies.registry import FILTERS, PICKS, SCORES, factory

from .admission import WatermarkSettings  # noqa: TC001 - msgspec reads it at run time
from .cost import Cost
from .dispatch import Dispatcher
from .guards import GuardSettings
from .journal import Journaled, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from forebay.policies.contracts import Filter, Ordering, Request, Score


_RANKED = frozenset({"bounded", "hrrn", "ml"})
"""Orderings that read anew what they stand by."""


@dataclass(frozen=True, slots=True)
class DoubleQueueSettings:
    """Two queues, by predicted cost."""

    long_cost: float = 8192.0
    long_share: float = 0.3


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How one pool orders and guards what waits."""

    order: str = "fcfs"
    predicts: bool = False
    """Lengths are really predicted; `ml` is `fair` without."""
    reread_s: float = 0.05
    reread_dispatches: int = 8
    guards: GuardSettings | None = field(default_factory=GuardSettings)
    watermarks: WatermarkSettings | None = None
    double_queue: DoubleQueueSettings | None = None
    reserves: Mapping[str, float] = field(default_factory=dict[str, float])
    """Shares of the pool's places that are kept for some tenants, by the reserve's name."""
    class_caps: Mapping[str, int] = field(default_factory=dict[str, int])
    """Requests of a class that may wait, by the class's name."""
    speculation: int | None = None
    """Requests in flight from which an endpoint's drafts do not pay; None: none speculates."""


def make_ordering(
    settings: Scheduling, *, uncached: Callable[[Request], int] | None = None
) -> Ordering:
    """Make the ordering; raises ConfigError where there is none of that name."""

    def one() -> Ordering:
        made = factory("ordering", settings.order)
        if settings.order not in _RANKED:
            return made()
        ranks = {
            "reread_s": settings.reread_s,
            "reread_dispatches": settings.reread_dispatches,
            "uncached": uncached,
        }
        return (
            made(predicts=settings.predicts, **ranks) if settings.order == "ml" else made(**ranks)
        )

    double = settings.double_queue
    if double is None:
        return one()
    return DoubleQueue(one, long_cost=double.long_cost, long_share=double.long_share)


def make_dispatcher(  # noqa: PLR0913 - as many as the dispatcher has parts that differ by pool
    settings: Scheduling,
    *,
    pool: str,
    rng: Random,
    max_requests: int,
    max_bytes: int,
    cost: Cost | None = None,
    uncached: Callable[[Request], int] | None = None,
    score: Score | None = None,
    journal: Callable[[bytes], object] | None = None,
) -> Dispatcher:
    """Make a dispatcher with the usual filters and pick; the usual score is the least load."""
    make = Dispatcher if journal is None else Journaled
    dispatcher = make(
        pool=pool,
        ordering=make_ordering(settings, uncached=uncached),
        filters=_filters(settings),
        scores=[(score or SCORES["least_tokens"](), 1.0)],
        pick=PICKS["seeded"](),
        rng=rng,
        max_requests=max_requests,
        max_bytes=max_bytes,
        guards=settings.guards,
        watermarks=settings.watermarks,
        reserves=settings.reserves,
        cost=cost,
    )
    if journal is not None and isinstance(dispatcher, Journaled):
        dispatcher.write_to(journal)
    dispatcher.set_limits(
        max_requests=max_requests, max_bytes=max_bytes, classes=settings.class_caps
    )
    return dispatcher


def _filters(settings: Scheduling) -> list[Filter]:
    filters = [FILTERS[name]() for name in ("usable", "capability", "room")]
    if settings.speculation is not None:
        filters.append(FILTERS["speculation"](max_batch=settings.speculation))
    return filters


def journal_head(settings: Scheduling, *, pool: str, seed: int, cost: Cost) -> bytes:
    """Return the first line of a journal: what its dispatcher is made of."""
    return msgspec.json.encode(("core", settings, pool, seed, cost)) + b"\n"


def check_journal(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Decide a journal's events again; yield each decision that differs, as it was and is.

    Raises ValueError when the lines do not begin as a journal does. Weakness: scores and `uncached`
    of a prefix index are not in the journal, so a pool that places by prefix decides otherwise.
    """
    rest = iter(lines)
    head = next(rest, b"null")
    _core_of(head, _nowhere)
    return replay(chain([head], rest), _core_of)


def _nowhere(line: bytes) -> None:
    """Write nothing."""


def _core_of(head: bytes, write: Callable[[bytes], object]) -> Journaled:
    """Make the dispatcher that a journal's head tells of."""
    try:
        kind, told, pool, seed, cost = msgspec.json.decode(head)
        settings = msgspec.convert(told, Scheduling)
        weights = msgspec.convert(cost, Cost)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"this is no journal: {error}") from error
    if kind != "core":
        raise ValueError("this is no journal: its first line is of another kind")
    made = make_dispatcher(
        settings,
        pool=pool,
        rng=Random(seed),  # noqa: S311 - as the one that is checked
        max_requests=0,  # the journal says the limits
        max_bytes=0,
        cost=weights,
        journal=write,
    )
    assert isinstance(made, Journaled)
    return made
