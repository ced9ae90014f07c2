"""What is learnt of a pool's endpoints and what follows: health, load, drafts, warmth.

Whatever changes an endpoint's view goes through here or its pool, so that the dispatcher hears of
it at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.adapters.base import Load, Verdict
from forebay.scheduler.health import State

from .endpoint import shown_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.scheduler.health import Change
    from forebay.scheduler.speculation import Reading as Drafts

    from .endpoint import Endpoint
    from .pools import Pool
    from .warming import Warmer

logger = logging.getLogger(__name__)

_REFUSED = 503


class Upkeep:
    """Keeps the views of one pool's endpoints true."""

    def __init__(self, pool: Pool, changed: Callable[[str, str, str], None]) -> None:
        """Keep a pool's; `changed` is told each change of state: pool, endpoint, what it is now."""
        self._pool = pool
        self._changed = changed

    def tick(self, now: float) -> None:
        """Let time pass: breakers half-open, slow starts, warming."""
        prefix = self._pool.prefix
        if prefix is not None:
            prefix.tick_first(now, waiting=bool(self._pool.waiting))
        for endpoint in self._pool.endpoints.values():
            if endpoint.health.next_tick(now) is not None:
                change = endpoint.health.tick(now)
                if change is not None:
                    self.moved(endpoint, change, now)
            self.refresh(endpoint, now)

    def close(self) -> None:
        """Stop warming."""
        if self._pool.prefix is not None:
            self._pool.prefix.close()

    # -- health ----------------------------------------------------------------------------------

    def succeeded(self, endpoint: Endpoint, now: float) -> None:
        """Take in a good answer."""
        change = endpoint.health.request_succeeded(now)
        if change is not None:
            self.moved(endpoint, change, now)

    def judged(
        self, endpoint: Endpoint, verdict: Verdict, reason: str, now: float, *, status: int = 0
    ) -> None:
        """Take in what an answer says of its endpoint; `status` is the engine's, 0 for none."""
        health = endpoint.health
        if verdict is Verdict.BROKEN:
            change = health.request_failed(now, reason)
        elif verdict is Verdict.MISCONFIGURED:
            change = health.misconfigured(now, reason)
        elif verdict is Verdict.FULL and status == _REFUSED:
            change = health.request_refused(now, reason)
        else:
            health.good_bytes(now)  # it answers, whatever it says
            return
        if change is not None:
            self.moved(endpoint, change, now)

    def moved(self, endpoint: Endpoint, change: Change, now: float) -> None:
        """Carry out a change of state: one log line, one metric, and the dispatcher."""
        up = change.new is State.UP
        if change.new is State.DOWN:
            self.restarted(endpoint)  # or may have: not every engine tells
        logger.log(
            logging.INFO if up else logging.WARNING,
            "endpoint is up" if up else "endpoint changed state",
            extra={
                "pool": self._pool.name,
                "endpoint": endpoint.name,
                "from": str(change.old),
                "to": str(change.new),
                "reason": change.reason,
            },
        )
        self._changed(self._pool.name, endpoint.name, shown_state(endpoint, now))
        if up:
            self.warm(endpoint, now)
        self.refresh(endpoint, now)
        if not endpoint.view.usable:
            self.make_way(now)

    def restarted(self, endpoint: Endpoint) -> None:
        """Take in that an engine is a new process: its cache is empty."""
        prefix = self._pool.prefix
        if prefix is None:
            return
        prefix.forget(endpoint.name)
        events = prefix.events.get(endpoint.name)
        started = None if endpoint.probe is None else endpoint.probe.started
        if events is not None and events.engine_restarted is not None and started is not None:
            events.engine_restarted(started)

    def refresh(self, endpoint: Endpoint, now: float) -> None:
        """Copy an endpoint's health into its view."""
        view, health = endpoint.view, endpoint.health
        usable, share = health.usable and not self._kept_out(endpoint, now), health.share(now)
        prefix = self._pool.prefix
        if prefix is not None and prefix.guard is not None:
            share *= prefix.guard.share
        if (usable, share) != (view.usable, view.share):
            view.usable, view.share = usable, share
            self._pool.wake(now)

    # -- warming ---------------------------------------------------------------------------------

    @property
    def _warmer(self) -> Warmer | None:
        return None if self._pool.prefix is None else self._pool.prefix.warmer

    def warm(self, endpoint: Endpoint, now: float) -> int:
        """Begin to prefill hot prefixes there; return how many are to be."""
        warmer = self._warmer
        return 0 if warmer is None else warmer.begin(endpoint, now)

    def warming(self, endpoint: str) -> int:
        """Return how many hot prefixes are still to be prefilled there."""
        warmer = self._warmer
        return 0 if warmer is None else warmer.left.get(endpoint, 0)

    def _kept_out(self, endpoint: Endpoint, now: float) -> bool:
        """Whether it is to be warm first, and can be spared."""
        warmer = self._warmer
        if warmer is None or not warmer.keeps_out(endpoint.name, now):
            return False
        every = (each for each in self._pool.endpoints.values() if each is not endpoint)
        others = [each.view for each in every if each.view.usable]
        models = frozenset[str]().union(*(view.models for view in others))
        return any(not view.models for view in others) or bool(
            endpoint.view.models and endpoint.view.models <= models
        )

    def make_way(self, now: float) -> None:
        """Warm nothing just now, and let in whoever was to be warm first: it is wanted."""
        warmer = self._warmer
        if warmer is not None and warmer.active:
            for endpoint in warmer.make_way():
                self.refresh(endpoint, now)

    # -- readings --------------------------------------------------------------------------------

    def speculated(self, endpoint: Endpoint, reading: Drafts | None, now: float) -> None:
        """Take in what an engine says of its drafts; None where it says nothing."""
        speculation = self._pool.speculation
        if speculation is not None and speculation.read(endpoint, reading, now):
            self._pool.wake(now)

    def loaded(self, endpoint: Endpoint, load: Load, now: float) -> None:
        """Take in a load reading."""
        view = endpoint.view
        view.running, view.waiting, view.kv_use, view.load_at = (
            load.running,
            load.waiting,
            load.kv_use,
            now,
        )
