"""The live side of a pool: its endpoints with their connections and health, its queue, who waits.

Whatever changes an endpoint's view goes through here, so that the dispatcher hears of it at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forebay.policies.contracts import InvalidRequest, Overloaded, Rejected
from forebay.scheduler.retry import RetryBudget

from .arrangement import Arrangement
from .endpoint import settings_of
from .intake import answers
from .prefix import PoolPrefix
from .scheduling import priority_of, window_of
from .speculation import speculation_of
from .upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay.gateway.config import sections
    from forebay.gateway.config.prefix import Prefix
    from forebay.policies.contracts import Outcome, Placement, Request
    from forebay.scheduler.dispatch import Dispatcher
    from forebay.scheduler.others import Others

    from .endpoint import Endpoint
    from .relay import Relay
    from .scheduling import Shared
    from .telemetry.histogram import Histogram

logger = logging.getLogger(__name__)


def prefix_of(section: sections.Pool) -> PoolPrefix | None:
    """Make what a pool knows of prefixes, nothing so far."""
    own = section.prefix
    return None if own is None or own.mode == "off" else PoolPrefix(own, pool=section.name)


class Pool:
    """The endpoints that serve one model, and the calls that wait for them."""

    def __init__(
        self,
        section: sections.Pool,
        *,
        seed: int,
        itl: Histogram,
        changed: Callable[[str, str, str], None],
    ) -> None:
        self.name = section.name
        self.section = section
        self.endpoints: dict[str, Endpoint] = {}
        self.waiting: dict[str, Relay] = {}
        """Queued calls by request id."""
        self.itl = itl
        """Gaps between tokens, of all its streams."""
        self.allow = frozenset(section.allow_fields)
        self.budget = RetryBudget(section.retry.budget)
        self.upkeep = Upkeep(self, changed)
        """Who keeps the endpoints' views."""
        self._recallable: dict[str, Relay] | None = None
        """Placed streams without a byte, by request id, where a higher class may call them back."""
        self._prefix_section: Prefix | None = section.prefix
        self.prefix = prefix_of(section)
        """What is known of prefixes; None where the pool does not look at them."""
        self.speculation = speculation_of(section)
        """Whom speculation pays for, and where; None where no endpoint speculates."""
        self.arrangement = Arrangement(section, seed=seed)
        """Its order, length predictor and journal."""
        self.dispatcher: Dispatcher = self.arrangement.dispatcher(self.prefix)
        self._feedback = self.arrangement.feedback(self.dispatcher.ordering)
        self._bind_reading()

    @property
    def models(self) -> dict[str, str]:
        """The names callers may ask for, each with the engine's name for it."""
        return self.section.models

    def why_unserved(self, endpoint: Endpoint) -> str:
        """Say why an endpoint serves none of the pool's models; empty when it serves some."""
        served = endpoint.view.models
        names = {self.engine_model(model) for model in self.models}
        if not served or served & names:
            return ""
        wanted, has = (", ".join(sorted(each)[:3]) for each in (names, served))
        return f"it serves none of the pool's models ({wanted}), but {has}"

    def engine_model(self, model: str) -> str:
        """Return the name that is sent on for a caller's."""
        return self.section.models[model] or self.section.engine_model or model

    def takes(self, model: str) -> bool:
        """Tell whether an endpoint that is usable now serves the engine's model."""
        views = (endpoint.view for endpoint in self.endpoints.values())
        return any(v.usable and (not v.models or model in v.models) for v in views)

    def take(
        self, section: sections.Pool, endpoints: Iterable[Endpoint], *, shared: Shared
    ) -> None:
        """Take a section, and what the rest of the file says. The caller calls `wake` after."""
        if section.retry != self.section.retry:
            self.budget = RetryBudget(section.retry.budget)
        self.section = section
        self._refuse_dropped_models()
        self.allow = frozenset(section.allow_fields)
        self._reschedule(section, shared)
        self.set_endpoints(endpoints)
        if self.prefix is not None:
            self.prefix.attend(shared, tuple(self.endpoints))
        own = {endpoint.name: endpoint for endpoint in section.endpoints}
        for endpoint in self.endpoints.values():
            endpoint.configure(own[endpoint.name], window_of(section))
            endpoint.health.configure(settings_of(section.health))
        self._show_speculation(section)

    def _show_speculation(self, section: sections.Pool) -> None:
        """Take how the pool treats speculation; what was learnt stays while that is the same."""
        now = self.speculation
        if now is None or now.of(section) != now.section:
            self.speculation = now = speculation_of(section)
        for endpoint in self.endpoints.values():
            endpoint.view.speculates = None
        if now is not None:
            now.show(self.endpoints.values())

    def _refuse_dropped_models(self) -> None:
        """Refuse what waits for a model that the pool serves no more, or by another name.

        Sent on, it would make an engine look misconfigured.
        """
        served = {self.engine_model(model) for model in self.models}
        for relay in tuple(self.waiting.values()):
            name = relay.outcome.model
            if name not in self.models and relay.request.model in served:
                continue  # it came from another pool, by that one's name
            if name not in self.models:
                text = "the model that this waited for is no longer served"
                relay.ousted(InvalidRequest(text, status=404, code="model_not_found"))
            elif self.engine_model(name) != relay.request.model:
                text = "the pool has been configured anew; send this again"
                relay.ousted(Overloaded(text, status=503, retry_after=1.0))

    def recheck(self, now: float) -> None:
        """Refuse what waits for something that no endpoint has any more."""
        for request, error in self.dispatcher.recheck(now):
            relay = self.waiting.pop(request.id, None)
            if relay is not None:
                relay.ousted(error)

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Replace the endpoints; the caller calls `wake` after."""
        before = self.endpoints
        self.endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._let_join(before)
        if self.prefix is not None:
            for name, endpoint in before.items():
                if self.endpoints.get(name) is not endpoint:
                    self.prefix.left(name)
        self.dispatcher.set_endpoints(endpoint.view for endpoint in self.endpoints.values())

    def _let_join(self, before: Mapping[str, Endpoint]) -> None:
        """Have who is new pass a probe first, where others can take what comes."""
        stay = [e for name, e in self.endpoints.items() if before.get(name) is e]
        if not any(endpoint.view.usable for endpoint in stay):
            return
        for name, endpoint in self.endpoints.items():
            if before.get(name) is not endpoint:
                endpoint.health.join()
                endpoint.view.usable = False

    def start(self, placements: Iterable[Placement], now: float) -> None:
        """Send the calls on whose turn has come."""
        for placement in placements:
            if not self.dispatcher.holds(placement):  # called back since it was placed
                continue
            relay = self.waiting.pop(placement.request.id, None)
            if relay is None:  # it left in this very turn
                self.release(placement, now)
                continue
            relay.placed(placement, now)

    def submit(self, relay: Relay, request: Request, now: float) -> None:
        """Have a call placed, or let it wait. Raises Rejected.

        Who was called back for it is stopped before it is sent, and it stands among those who wait
        before anything is done that could make its turn come.
        """
        try:
            placement = self.dispatcher.submit(request, now)
        except Rejected:
            self._tell_others(now)
            raise
        others, reading = self._call_back(), self.arrangement.reading
        if placement is None:
            relay.queued()
            self.waiting[request.id] = relay
            if reading is not None and not request.avoid:
                inbound = relay.inbound
                reading.ask(request, inbound.body, answers(inbound.body))
            self.upkeep.make_way(now)
        else:
            if reading is not None and not request.avoid:
                reading.idle()
            relay.placed(placement, now)
        self._tell(others, now)

    def leave(self, request: Request) -> None:
        """Let a request go that waits."""
        self.waiting.pop(request.id, None)
        self.dispatcher.leave(request)

    def note_placed(self, placement: Placement, relay: Relay) -> None:
        """Tell the endpoint's window and the prefixes where a request goes."""
        request = placement.request
        if self._recallable is not None and request.stream:
            self._recallable[request.id] = relay
        endpoint = self.endpoints.get(placement.endpoint)
        if endpoint is not None and endpoint.window is not None:
            endpoint.window.placed(endpoint.view.in_flight)
        if self.prefix is not None:
            self.prefix.placed(placement)

    def release(self, placement: Placement, now: float, outcome: Outcome | None = None) -> None:
        """Give a place back and start whoever is next; without an outcome it is tried again."""
        cost: float | None = 0.0
        try:
            cost = self._learn(placement, now, outcome)
        finally:  # a place that is not given back is lost for good
            if self._recallable is not None:
                self._recallable.pop(placement.request.id, None)
            freed = self.dispatcher.release(placement, now, cost)
            self._tell_others(now)
            if freed:
                self.start(freed, now)

    def _learn(self, placement: Placement, now: float, outcome: Outcome | None) -> float | None:
        """Learn from how a request ended; return what it cost, None for what was estimated."""
        cost: float | None = 0.0
        if self.prefix is not None:
            self.prefix.released(placement, outcome, now)
        if outcome is not None:
            endpoint = self.endpoints.get(placement.endpoint)
            window = None if endpoint is None else endpoint.window
            cost, moved = self._feedback.ended(placement, outcome, window)
            if self.speculation is not None and endpoint is not None:
                drafting = endpoint.section.speculative is not None
                self.speculation.ended(placement, outcome, speculative=drafting)
            if moved and endpoint is not None and window is not None:
                endpoint.view.limit = window.limit
        return cost

    def wake(self, now: float) -> None:
        """Tell the dispatcher that something about the endpoints has changed."""
        freed = self.dispatcher.changed(now)
        self._tell_others(now)
        self.start(freed, now)

    def began(self, placement: Placement, *, good: bool, now: float | None = None) -> None:
        """Take in that the first byte of an answer has come, or of an error.

        `now` where bytes go on to the caller from now on.
        """
        if good and self.prefix is not None:
            self.prefix.began(placement, now)
        recallable = self._recallable
        if recallable is not None and recallable.pop(placement.request.id, None) is not None:
            self.dispatcher.began(placement)

    def priority(self, request: Request) -> int | None:
        """Return what an engine is told of a request's urgency; None for nothing."""
        return priority_of(request) if self.section.scheduling.engine_priority else None

    def _tell_others(self, now: float) -> None:
        """Tell calls what an event did to them that was not theirs."""
        self._tell(self._call_back(), now)

    def _call_back(self) -> Others | None:
        """Stop those that lost their places to a higher class; return what else happened."""
        others = self.dispatcher.take_others()
        if others is None:
            return None
        for placement in others.recalled:
            relay = (self._recallable or {}).pop(placement.request.id, None)
            if relay is not None:
                self.waiting[placement.request.id] = relay
                relay.recalled()
        return others

    def _tell(self, others: Others | None, now: float) -> None:
        if others is None:
            return
        for request, error in others.refused:
            relay = self.waiting.pop(request.id, None)
            if relay is not None:
                relay.ousted(error)
        self._expired(others.expired, now)
        self.start(others.started, now)

    def _expired(self, requests: Iterable[Request], now: float) -> None:
        for request in requests:
            relay = self.waiting.pop(request.id, None)
            if relay is not None:
                relay.expired(now)

    # -- its scheduling, arranged anew -----------------------------------------------------------

    def _reschedule(self, section: sections.Pool, shared: Shared) -> None:
        """Take a section's order; what waits and runs goes on under it."""
        before = self.arrangement.length
        changed = self.arrangement.take(section, shared)
        if self.arrangement.length is not before:
            self._bind_reading()
        if section.prefix != self._prefix_section:
            self._look_again(section)
            changed = True
        if changed:
            guards = self.arrangement.settings.guards
            self._recallable = {} if guards is not None and guards.recalls else None
        self._rearrange(remake=changed)

    def _rearrange(self, *, remake: bool) -> None:
        """Take the limits and what learns; with `remake` another dispatcher takes over."""
        if remake:
            before, self.dispatcher = self.dispatcher, self.arrangement.dispatcher(self.prefix)
            self.dispatcher.take_over(before)
        queue = self.section.queue
        self.dispatcher.set_limits(
            max_requests=queue.max_requests, max_bytes=queue.max_bytes, classes=queue.classes
        )
        self._feedback = self.arrangement.feedback(self.dispatcher.ordering)

    def _look_again(self, section: sections.Pool) -> None:
        """Look at prefixes as a section says; what is known stays where it can."""
        own, before = section.prefix, self.prefix
        self._prefix_section = own
        if before is None or own is None or not before.takes(own):
            self.upkeep.close()
            self.prefix = prefix_of(section)

    def _bind_reading(self) -> None:
        reading = self.arrangement.reading
        if reading is not None:
            waits = self.waiting.__contains__
            reading.bind(revise=self.revise, waits=waits, trust=self._trust)

    def _trust(self) -> None:
        """Order anew, since trust in predictions was lost or has come back."""
        self.arrangement.trust()
        self._rearrange(remake=True)

    def revise(self, request_id: str, output_tokens: int) -> bool:
        """Put a better estimate in the place of a waiting request's; False when its turn came."""
        relay = self.waiting.get(request_id)
        if relay is None:
            return False
        better = replace(relay.request, output_tokens_estimate=output_tokens)
        if not self.dispatcher.revise(better, relay.request.arrived):
            return False
        relay.revised(better)
        return True

    # -- time, and the end -----------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Let time pass: breakers half-open, slow starts, deadlines of those who wait."""
        try:
            self.upkeep.tick(now)
            self.dispatcher.tick(now)
            if self.prefix is not None:
                self.prefix.tick(now, self.endpoints)
            self.arrangement.flush()
        finally:  # whoever waits is told in time, whatever is wrong here
            self._expire(now)

    def _expire(self, now: float) -> None:
        deadline = self.dispatcher.next_deadline
        if deadline is not None and deadline <= now:
            self._expired(self.dispatcher.expire(now), now)
            self._tell_others(now)

    def close(self) -> None:
        """Let go of threads and files, when its last request has ended."""
        self.upkeep.close()
        self.arrangement.close()
