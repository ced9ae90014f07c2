"""Prefills hot prefixes on endpoints whose caches are cold: one at a time, by a rate, in the gaps.

An endpoint that joins or returns begins cold, so each prefix that everybody uses would be prefilled
at the cost of the first caller who comes there with it. Where the pool's `prefix.warm` says so,
the beginnings of hot prompts are sent there first, for one output token each.

What is sent is kept in memory only, and only of prefixes that have come several times
(`prefixcache.hot`). Callers go first: while requests wait, or the endpoint has half of its places
taken, nothing is sent, and what is under way is stopped and sent again later. Nobody is billed.
Driven by the pool's tick; no task, no thread.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.adapters.base import Call
from forebay.policies.contracts import ForebayError, Route
from forebay.prefixcache.hot import HotPrefixes

from .dialects import Seen, dialect_of_path
from .ids import Ids
from .intake import READ_OR_WRITTEN
from .prefix_text import beginning
from .wire import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.adapters.base import Headers, Stream
    from forebay.gateway.config.prefix import Warm
    from forebay.policies.contracts import EndpointView, EngineFailed, Request
    from forebay.prefixcache.blocks import BlockHash
    from forebay.prefixcache.hot import HotPrefix

    from .endpoint import Endpoint
    from .intake import AnyBody

logger = logging.getLogger(__name__)

RESULTS = ("warmed", "failed", "gave_way", "held")
"""What becomes of a prompt that is to be prefilled: `held` is there already, `gave_way` to callers
and is sent again later."""
MOST_ANSWER = 64 << 10
_ONE_TOKEN = {Route.RESPONSES: {"max_output_tokens": 1, "store": False}}
"""How a route says that one token of an answer is enough, where it is not `max_tokens`."""
_HEADERS = (
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
    ("content-type", "application/json"),
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a prompt, as it can be sent to an engine. Tells none of it in its repr."""

    route: Route
    model: str
    salt: str | None = field(repr=False)
    body: bytes = field(repr=False)


Hot = HotPrefixes[Beginning]


def cut_text(request: Request, body: AnyBody, size: int, salt: str | None) -> Beginning | None:
    """Return the first `size` bytes of a prompt's text as something to send."""
    members = beginning(request.route, body, size)
    return None if members is None else _beginning(request.route, request.model, salt, members)


def cut_tokens(request: Request, tokens: bytes, salt: str | None) -> Beginning:
    """Return a prompt's first tokens as something to send, whatever its route."""
    prompt = list(memoryview(tokens).cast("I"))
    return _beginning(Route.COMPLETIONS, request.model, salt, {"prompt": prompt})


def _beginning(route: Route, model: str, salt: str | None, members: Mapping[str, Any]) -> Beginning:
    body = {"model": model, **members, **_ONE_TOKEN.get(route, {"max_tokens": 1}), "temperature": 0}
    return Beginning(route, model, salt, msgspec.json.encode(body))


class _Run:
    """One endpoint that is being warmed."""

    __slots__ = ("done", "due", "endpoint", "held_until", "left", "prefill", "until")

    def __init__(self, endpoint: Endpoint, prefixes: Sequence[HotPrefix[Beginning]]) -> None:
        self.endpoint = endpoint
        self.left = deque(prefixes)
        self.prefill: _Prefill | None = None
        self.due = self.until = self.held_until = 0.0
        self.done = 0


class Warmer:
    """Warms the endpoints of one pool."""

    def __init__(
        self,
        pool: str,
        section: Warm,
        *,
        holds: Callable[[str, Sequence[BlockHash]], bool],
        warmed: Callable[[str, Sequence[BlockHash]], None],
    ) -> None:
        """Take whom to ask whether an endpoint holds all of a prefix, and to tell that it does."""
        self.hot = Hot(most=section.most, most_bytes=section.most_bytes, uses=section.uses)
        self.results: dict[str, int] = dict.fromkeys(RESULTS, 0)
        self.tokens = 0
        """Prompt tokens that engines prefilled for it, as they say."""
        self._pool = pool
        self._section = section
        self._holds = holds
        self._warmed = warmed
        self._ids = Ids()
        self._runs: dict[str, _Run] = {}

    @property
    def active(self) -> bool:
        """Whether an endpoint is being warmed."""
        return bool(self._runs)

    @property
    def left(self) -> dict[str, int]:
        """How many prompts are still to be sent, by endpoint."""
        return {name: len(run.left) + (run.prefill is not None) for name, run in self._runs.items()}

    def met(self, request: Request, hit: int, now: float, cut: Callable[[], Any]) -> None:
        """Take note of a prompt whose first `hit` blocks are known; `cut` makes what is kept."""
        if self.hot.met(request.blocks, hit, now):
            content: Beginning | None = cut()
            if content is None:
                self.hot.decline(request.blocks[:hit])
            else:
                self.hot.keep(request.blocks[:hit], content, len(content.body), now)

    def begin(self, endpoint: Endpoint, now: float) -> int:
        """Begin to warm an endpoint; return how many prompts that takes."""
        self.end(endpoint.name)
        hot = self.hot.hottest(now)
        prefixes = [prefix for prefix in hot if not self._holds(endpoint.name, prefix.chain)]
        if not prefixes:
            return 0
        run = self._runs[endpoint.name] = _Run(endpoint, prefixes)
        run.until, run.held_until = now + self._section.limit, now + self._section.hold
        told = {"pool": self._pool, "endpoint": endpoint.name, "prompts": len(prefixes)}
        logger.info("warming endpoint", extra=told)
        return len(prefixes)

    def end(self, endpoint: str) -> None:
        """Stop warming an endpoint, if it is."""
        run = self._runs.pop(endpoint, None)
        if run is None:
            return
        if run.prefill is not None:
            run.prefill.stop()
        told = {"pool": self._pool, "endpoint": endpoint, "warmed": run.done, "left": len(run.left)}
        logger.info("endpoint is warmed", extra=told)

    def forget(self) -> None:
        """Stop warming, and keep nothing of what was kept."""
        self.close()
        self.hot.clear()

    def close(self) -> None:
        """Stop warming."""
        for name in tuple(self._runs):
            self.end(name)

    # -- holding back ----------------------------------------------------------------------------

    def keeps_out(self, endpoint: str, now: float) -> bool:
        """Tell whether an endpoint is to get no requests before it is warm."""
        run = self._runs.get(endpoint)
        return run is not None and now < run.held_until

    def make_way(self) -> tuple[Endpoint, ...]:
        """Stop what is under way and keep nobody out any more; return whom that lets in."""
        kept = tuple(run.endpoint for run in self._runs.values() if run.held_until)
        for run in self._runs.values():
            run.held_until = 0.0
            self._give_way(run)
        return kept

    # -- sending ---------------------------------------------------------------------------------

    def tick(self, now: float, *, waiting: bool) -> tuple[Endpoint, ...]:
        """Send what is due, stop what is in callers' way; return who is warm now."""
        for run in self._runs.values():
            self._step(run, now, waiting=waiting)
        ended = [run for run in self._runs.values() if self._is_over(run, now)]
        for run in ended:
            self.end(run.endpoint.name)
        return tuple(run.endpoint for run in ended)

    @staticmethod
    def _is_over(run: _Run, now: float) -> bool:
        gone = not run.endpoint.health.usable
        return gone or now >= run.until or (not run.left and run.prefill is None)

    def _step(self, run: _Run, now: float, *, waiting: bool) -> None:
        if waiting or not has_room(run.endpoint.view):
            self._give_way(run)
        elif run.prefill is None and now >= run.due:
            self._send_next(run, now)

    def _give_way(self, run: _Run) -> None:
        prefill = run.prefill
        if prefill is not None:
            prefill.stop()
            run.prefill = None
            run.left.appendleft(prefill.prefix)
            self.results["gave_way"] += 1

    def _send_next(self, run: _Run, now: float) -> None:
        while run.left:
            prefix = run.left.popleft()
            if self._holds(run.endpoint.name, prefix.chain):
                self.results["held"] += 1
                continue
            run.due = now + 1.0 / self._section.rate
            ended = partial(self._ended, run, prefix)
            run.prefill = _Prefill(prefix, run.endpoint, self._ids.next(), ended)
            run.prefill.open()
            return

    def _ended(
        self, run: _Run, prefix: HotPrefix[Beginning], *, good: bool, seen: Seen | None
    ) -> None:
        run.prefill = None
        self.results["warmed" if good else "failed"] += 1
        if good:
            run.done += 1
            self._warmed(run.endpoint.name, prefix.chain)
        if seen is not None:
            self.tokens += (seen.prompt_tokens or 0) - (seen.cached_tokens or 0)


def has_room(view: EndpointView) -> bool:
    """Tell whether an endpoint has places to spare: half of those it may have now."""
    return view.in_flight * 2 <= max(1, int(view.limit * view.share)) - 1


class _Prefill:
    """One prompt under way; the sink of its answer, which nobody reads but for its usage."""

    def __init__(
        self,
        prefix: HotPrefix[Beginning],
        endpoint: Endpoint,
        request_id: str,
        ended: Callable[..., None],
    ) -> None:
        """Take whom to tell, once, whether it was prefilled (`good`) and what was `seen`."""
        self.prefix = prefix
        self._ended = ended
        self._endpoint = endpoint
        self._request_id = request_id
        self._stream: Stream | None = None
        self._status = 0
        self._answer = bytearray()

    def open(self) -> None:
        """Send it."""
        content, adapter = self.prefix.content, self._endpoint.adapter
        body = read(content.body, READ_OR_WRITTEN)
        call = Call(
            request_id=self._request_id,
            route=content.route,
            method="POST",
            path=content.route.value,
            model=content.model,
            members=body.members,
            cache_salt=content.salt,
        )
        try:
            sent = adapter.translate(call)
        except ForebayError:  # this kind of engine does not have the route
            self._ended(good=False, seen=None)
            return
        raw = body.splice(sent.set, sent.drop)
        headers = (*_HEADERS, *sent.headers)
        self._stream = self._endpoint.opener.open("POST", sent.path, headers, raw, self)

    def stop(self) -> None:
        """Leave; the engine sees its caller go."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def on_head(self, status: int, headers: Headers) -> None:
        """See Sink."""
        del headers
        self._status = status

    def on_data(self, data: bytes) -> None:
        """See Sink."""
        if len(self._answer) < MOST_ANSWER:
            self._answer += data

    def on_end(self) -> None:
        """See Sink."""
        self._stream = None
        seen: Seen | None = None
        if self._status == 200:
            seen = Seen()
            dialect_of_path(self.prefix.content.route.value).read(bytes(self._answer), seen)
        self._ended(good=self._status == 200, seen=seen)

    def on_failure(self, error: EngineFailed) -> None:
        """See Sink."""
        del error  # health is for probes and callers' requests to judge
        self._stream = None
        self._ended(good=False, seen=None)
