"""One endpoint as the gateway has it: how to reach it, how it is, and how much it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.adapters.base import Target
from forebay.adapters.registry import ADAPTERS
from forebay.policies.contracts import EndpointView
from forebay.scheduler.health import Health, HealthSettings, State
from forebay.scheduler.window_adaptive import AdaptiveWindow

if TYPE_CHECKING:
    from forebay.adapters.base import Opener, Probe
    from forebay.adapters.sim import Embedded
    from forebay.gateway.config import sections
    from forebay.scheduler.window_adaptive import WindowSettings

DEFAULT_LIMIT = 256
"""Requests in flight at an endpoint that neither the configuration nor the engine limits."""
AUTO = 0
"""What `max_in_flight: auto` is in a section."""


class Endpoint:
    """One engine server: how to reach it and how it is."""

    def __init__(
        self,
        section: sections.Endpoint,
        health: sections.Health,
        opener: Opener,
        *,
        embedded: Embedded | None = None,
    ) -> None:
        self.section = section
        self.name = section.name
        self.embedded = embedded
        """The engine itself, where it runs in this process: it is asked directly."""
        self.adapter = ADAPTERS[section.engine]
        self.opener = opener
        key = section.key.get_secret_value() if section.key else None
        self.target = Target(section.name, section.url or "", key)
        self.health = Health(settings_of(health), optimistic=True)
        self.probe: Probe | None = None
        self.window: AdaptiveWindow | None = None
        """Finds the limit, where the configuration says `auto`."""
        self.total = section.max_in_flight or DEFAULT_LIMIT
        """What it takes at once, of all replicas together; `view.limit` is this one's part."""
        self._part: int | None = None
        self.view = EndpointView(
            name=section.name,
            engine=section.engine,
            limit=self.total,
            usable=True,  # until a probe says otherwise: a start must not refuse what comes at once
        )

    @property
    def identity(self) -> tuple[str, str | None, str, str | None]:
        """What must stay the same for an endpoint to outlive a reload."""
        return (self.name, self.section.url, self.section.engine, self.target.key)

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may use it, up to a limit that is known."""
        return self.section.url is not None and self.window is None

    @property
    def part_is_less(self) -> bool:
        """Whether others have a part of what it takes."""
        return self._part is not None and self._part < self.total

    def take_part(self, part: int | None) -> None:
        """Take what this replica may use of it now; None: all of it.

        Where the limit came to be found (`auto`) since it was asked for, there is no part.
        """
        if self.window is not None:
            return
        self._part = part
        self._limit_to(self.total)

    def _limit_to(self, total: int) -> None:
        self.total = total
        self.view.limit = total if self._part is None else min(total, self._part)

    def configure(self, section: sections.Endpoint, window: WindowSettings) -> None:
        """Take a section of the same identity; `window` is how `auto` finds a limit."""
        self.section = section
        if section.max_in_flight == AUTO:
            if self.window is None or self.window.settings != window:
                self.window = AdaptiveWindow(window)
            self._part = None
            self.view.limit = self.window.limit
            return
        self.window = None
        said = None if self.probe is None else self.probe.limit
        self._limit_to(section.max_in_flight or said or DEFAULT_LIMIT)

    def adopt(self, probe: Probe) -> bool:
        """Take over what a probe says; True when the engine is a new process."""
        before, self.probe = self.probe, probe
        view = self.view
        if self.section.max_in_flight is None:
            self._limit_to(probe.limit or DEFAULT_LIMIT)
        served = frozenset(card.name for card in probe.models)
        view.models = frozenset() if probe.any_model else served
        view.routes = probe.routes
        return before is not None and is_new_process(before, probe)


def is_new_process(before: Probe, now: Probe) -> bool:
    """Tell whether two probes of one endpoint met two processes, by whatever they told."""
    if before.started is not None and now.started is not None:
        return now.started > before.started + 1
    if before.version is not None and now.version is not None and now.version != before.version:
        return True
    counted, counts = before.generated, now.generated
    return counted is not None and counts is not None and counts < counted


def settings_of(section: sections.Health) -> HealthSettings:
    """Turn the section into what the pure core takes."""
    return HealthSettings(
        interval=section.interval,
        fails=section.fails,
        successes=section.successes,
        breaker_fails=section.breaker_fails,
        breaker_open=section.breaker_open,
        slow_start=section.slow_start,
    )


def shown_state(endpoint: Endpoint, now: float) -> str:
    """Name an endpoint's state as metrics and the status do (`telemetry.labels.STATES`)."""
    health = endpoint.health
    if health.state is State.UP and health.share(now) < 1:
        return "returning"
    return {State.STARTING: "unknown", State.TRIAL: "half_open"}.get(
        health.state, str(health.state)
    )
