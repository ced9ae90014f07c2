"""A dispatcher that writes down what it is told and what it decides, and the way back.

One JSON array a line. `["in", EVENT, now, ...]` is what it was told: requests, releases with their
true cost, endpoints as they were just before, the passing of time. `["out", ...]` is what it
decided. `replay` feeds the ins of a journal to a dispatcher of the same make and yields the outs
that this one decides: the same bytes, or something has changed. Where a reload puts another
dispatcher in the place of one, a new head follows in the same journal, and what ran and waited.

The journal holds no prompt and no answer, but ids, names and sizes. What it costs (some 20 us an
event) is only paid where a journal is kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.policies.contracts import EndpointView, Placement, Rejected, Request, Route

from .dispatch import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .others import Others

_TOLD = tuple(name for name in EndpointView.__slots__ if not name.startswith("in_flight"))
"""Of an endpoint: what others write; the rest is the dispatcher's own count."""
_ASKED = tuple(name for name in Request.__struct_fields__ if name not in {"blocks", "shape"})
"""Of a request: all but its prefix, which only a score and an index outside look at, and its shape,
which is made of the rest."""
_encode = msgspec.json.Encoder(order="deterministic").encode


class Journaled(Dispatcher):
    """A dispatcher whose every event and decision is written down, a line at a time."""

    _write: Callable[[bytes], object]
    _views: dict[str, tuple[object, ...]]

    def write_to(self, write: Callable[[bytes], object]) -> None:
        """Write there; to be called once, before anything happens."""
        self._write = write
        self._views = {}

    def _in(self, event: str, *what: object) -> None:
        self._write(_encode(("in", event, *what)) + b"\n")

    def _out(self, decision: str, *what: object) -> None:
        self._write(_encode(("out", decision, *what)) + b"\n")

    def _look(self, views: Iterable[EndpointView]) -> None:
        """Write down which endpoints are not what they were."""
        for view in views:
            told = tuple(getattr(view, name) for name in _TOLD)
            if self._views.get(view.name) != told:
                self._views[view.name] = told
                self._in("view", dict(zip(_TOLD, told, strict=True)))

    def _placed_now(self, placements: list[Placement]) -> list[Placement]:
        self._out("placed", [_where(placement) for placement in placements])
        return placements

    def set_endpoints(self, views: Iterable[EndpointView]) -> None:
        """See Dispatcher."""
        some = list(views)
        self._look(some)
        self._in("endpoints", [view.name for view in some])
        super().set_endpoints(some)

    def set_limits(
        self, *, max_requests: int, max_bytes: int, classes: Mapping[str, int] | None = None
    ) -> None:
        """See Dispatcher."""
        self._in("limits", max_requests, max_bytes, dict(classes or {}))
        super().set_limits(max_requests=max_requests, max_bytes=max_bytes, classes=classes)

    def resume(
        self,
        *,
        placed: Iterable[Placement],
        waiting: Iterable[Request],
        endpoints: Iterable[EndpointView],
    ) -> None:
        """See Dispatcher."""
        running, queued, views = list(placed), list(waiting), list(endpoints)
        self._look(views)
        self._in(
            "resume",
            [(_asked(p.request), p.endpoint, p.tokens, p.placed, p.cost) for p in running],
            [_asked(request) for request in queued],
            [view.name for view in views],
        )
        super().resume(placed=running, waiting=queued, endpoints=views)

    def submit(self, request: Request, now: float) -> Placement | None:
        """See Dispatcher."""
        self._look(self.endpoints.values())
        self._in("submit", now, _asked(request))
        try:
            placement = super().submit(request, now)
        except Rejected as error:
            self._out("rejected", request.id, error.status, error.code, error.retry_after)
            raise
        self._out("submitted", _where(placement))
        return placement

    def began(self, placement: Placement) -> None:
        """See Dispatcher."""
        self._in("began", placement.request.id)
        super().began(placement)

    def release(
        self, placement: Placement, now: float, cost: float | None = None
    ) -> list[Placement]:
        """See Dispatcher."""
        self._look(self.endpoints.values())
        self._in("release", now, placement.request.id, cost)
        return self._placed_now(super().release(placement, now, cost))

    def changed(self, now: float) -> list[Placement]:
        """See Dispatcher."""
        self._look(self.endpoints.values())
        self._in("changed", now)
        return self._placed_now(super().changed(now))

    def tick(self, now: float) -> None:
        """See Dispatcher."""
        self._look(self.endpoints.values())
        self._in("tick", now)
        super().tick(now)

    def revise(self, request: Request, now: float) -> bool:
        """See Dispatcher."""
        self._in("revise", now, request.id, request.output_tokens_estimate)
        return super().revise(request, now)

    def leave(self, request: Request) -> bool:
        """See Dispatcher."""
        self._in("leave", request.id)
        return super().leave(request)

    def expire(self, now: float) -> list[Request]:
        """See Dispatcher."""
        self._in("expire", now)
        expired = super().expire(now)
        self._out("expired", [request.id for request in expired])
        return expired

    def recheck(self, now: float) -> list[tuple[Request, Rejected]]:
        """See Dispatcher."""
        self._look(self.endpoints.values())
        self._in("recheck", now)
        hopeless = super().recheck(now)
        self._out("hopeless", [request.id for request, _ in hopeless])
        return hopeless

    def take_others(self) -> Others | None:
        """See Dispatcher."""
        others = super().take_others()
        if others is not None:
            self._in("others")
            self._out(
                "others",
                [_where(placement) for placement in others.recalled],
                [(request.id, error.code, error.retry_after) for request, error in others.refused],
                [request.id for request in others.expired],
                [_where(placement) for placement in others.started],
            )
        return others


def _asked(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in _ASKED}


def _read(told: dict[str, Any]) -> Request:
    route, avoid = Route(told.pop("route")), frozenset(told.pop("avoid"))
    without = frozenset(told.pop("without", ()))
    return Request(route=route, avoid=avoid, without=without, **told)


def _where(placement: Placement | None) -> tuple[str, str] | None:
    return None if placement is None else (placement.request.id, placement.endpoint)


class Replay:
    """Feeds the ins of one journal to a dispatcher and keeps the outs that it gives."""

    def __init__(self, make: Callable[[Callable[[bytes], object]], Journaled]) -> None:
        self.outs: list[bytes] = []
        self._core = make(self._keep)
        self._views: dict[str, EndpointView] = {}
        self._running: dict[str, Placement] = {}

    def _keep(self, line: bytes) -> None:
        if line.startswith(b'["out"'):
            self.outs.append(line)

    def feed(self, line: bytes) -> None:
        """Take one line; outs and empty lines are passed over."""
        if not line.startswith(b'["in"'):
            return
        _, event, *what = msgspec.json.decode(line)
        getattr(self, f"_{event}")(*what)

    def _view(self, told: dict[str, Any]) -> None:
        fresh = msgspec.convert(told, EndpointView)
        known = self._views.setdefault(fresh.name, fresh)
        for name in _TOLD:
            setattr(known, name, getattr(fresh, name))

    def _endpoints(self, names: list[str]) -> None:
        self._core.set_endpoints([self._views[name] for name in names])

    def _resume(
        self, placed: list[list[Any]], waiting: list[dict[str, Any]], names: list[str]
    ) -> None:
        running = [
            Placement(_read(told), endpoint, tokens, at, cost=cost)
            for told, endpoint, tokens, at, cost in placed
        ]
        self._go(running)
        self._core.resume(
            placed=running,
            waiting=[_read(told) for told in waiting],
            endpoints=[self._views[name] for name in names],
        )

    def _limits(self, max_requests: int, max_bytes: int, classes: dict[str, int]) -> None:
        self._core.set_limits(max_requests=max_requests, max_bytes=max_bytes, classes=classes)

    def _submit(self, now: float, told: dict[str, Any]) -> None:
        request = _read(told)
        try:
            placement = self._core.submit(request, now)
        except Rejected:
            return
        if placement is not None:
            self._running[request.id] = placement

    def _go(self, placements: Iterable[Placement]) -> None:
        for placement in placements:
            self._running[placement.request.id] = placement

    def _began(self, request_id: str) -> None:
        self._core.began(self._running[request_id])

    def _release(self, now: float, request_id: str, cost: float | None) -> None:
        self._go(self._core.release(self._running.pop(request_id), now, cost))

    def _changed(self, now: float) -> None:
        self._go(self._core.changed(now))

    def _tick(self, now: float) -> None:
        self._core.tick(now)

    def _revise(self, now: float, request_id: str, output_tokens: int) -> None:
        request = self._core.waiting.get(request_id)
        if request is not None:
            better = msgspec.structs.replace(request, output_tokens_estimate=output_tokens)
            self._core.revise(better, now)

    def _leave(self, request_id: str) -> None:
        request = self._core.waiting.get(request_id)
        if request is not None:
            self._core.leave(request)

    def _expire(self, now: float) -> None:
        self._core.expire(now)

    def _recheck(self, now: float) -> None:
        self._core.recheck(now)

    def _others(self) -> None:
        others = self._core.take_others()
        if others is not None:
            for placement in others.recalled:
                self._running.pop(placement.request.id, None)
            self._go(others.started)


def replay(
    lines: Iterable[bytes], make: Callable[[bytes, Callable[[bytes], object]], Journaled]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each decision that is not as it was: what the journal has, and what is decided now.

    `make` makes a dispatcher as a head (`["core", ...]`) of the journal tells, with the given
    `write`; nothing that is yielded means that every byte is the same. ValueError where the first
    line is no head.
    """
    feed: Replay | None = None
    checked = 0
    for line in lines:
        if feed is None or line.startswith(b'["core"'):
            yield from _more(feed, checked)
            feed, checked = Replay(partial(make, line)), 0
        elif line.startswith(b'["out"'):
            now = feed.outs[checked] if checked < len(feed.outs) else b""
            checked += 1
            if now != line:
                yield line, now
        else:
            feed.feed(line)
    yield from _more(feed, checked)


def _more(feed: Replay | None, checked: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield what was decided now and not then."""
    for extra in () if feed is None else feed.outs[checked:]:
        yield b"", extra
