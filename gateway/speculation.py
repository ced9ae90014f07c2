"""A pool's speculation as it runs: whom it pays for, what came of it, who is left alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.scheduler.speculation import Acceptance, AcceptanceSettings, WeeksAverage

from .intake import temperature_of
from .telemetry.snapshot import SpeculationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.gateway.config import sections
    from forebay.policies.contracts import Outcome, Placement
    from forebay.scheduler.speculation import Reading

    from .endpoint import Endpoint
    from .intake import AnyBody

__all__ = ["PoolSpeculation", "speculation_of"]

logger = logging.getLogger(__name__)

_FADE = 0.98
_MOST_KINDS = 64


def speculation_of(section: sections.Pool) -> PoolSpeculation | None:
    """Make a pool's; None where no endpoint of it speculates."""
    return None if PoolSpeculation.of(section) is None else PoolSpeculation(section)


class PoolSpeculation:
    """Judges requests at intake, endpoints by readings, and keeps the times of both kinds apart."""

    def __init__(self, section: sections.Pool) -> None:
        self.section = section.speculation
        own = self.section
        self._settings = AcceptanceSettings(
            least=own.min_accept_rate,
            back=own.return_accept_rate,
            window_s=own.window,
            rest_s=own.rest,
            min_drafts=own.min_drafts,
        )
        self._of: dict[str, Acceptance] = {}
        self._tpot: dict[tuple[str, bool], float] = {}
        self._usual: dict[str, WeeksAverage] = {}
        self.sent = {True: 0, False: 0}
        """Requests that ended, by whether a speculative endpoint had them."""

    @staticmethod
    def of(section: sections.Pool) -> sections.Speculation | None:
        """Return a pool's own section, None where no endpoint of it speculates."""
        speculative = any(endpoint.speculative for endpoint in section.endpoints)
        return section.speculation if speculative else None

    def judge(self, body: AnyBody, output_tokens: int, route: str) -> tuple[bool, str]:
        """Return whether speculation pays for a request, and which kind of request it is."""
        temperature = temperature_of(body)
        if temperature is None:
            temperature = 1.0  # what engines take
        pays = (
            temperature <= self.section.max_temperature
            and output_tokens >= self.section.min_output_tokens
        )
        what = "tools" if "tools" in body.members else route.rsplit("/", 1)[-1]
        return pays, f"{what} {_warmth(temperature)}"

    def show(self, endpoints: Iterable[Endpoint]) -> None:
        """Write into the endpoints' views whether they speculate, and whether that pays.

        These are all there are: what is known of others is forgotten.
        """
        endpoints = tuple(endpoints)
        for name in self._of.keys() - {endpoint.name for endpoint in endpoints}:
            del self._of[name]
        for endpoint in endpoints:
            method = endpoint.section.speculative
            endpoint.view.speculates = None if method is None else self._acceptance(endpoint).pays

    def read(self, endpoint: Endpoint, reading: Reading | None, now: float) -> bool:
        """Take in a reading, or None where there is none; True when requests go elsewhere now."""
        own = self._acceptance(endpoint)
        if not (own.wait(now) if reading is None else own.read(reading, now)):
            return False
        logger.warning(
            "speculation changed state",
            extra={"endpoint": endpoint.name, "to": str(own.stand), "accept_rate": own.judged},
        )
        changed = endpoint.view.speculates != own.pays
        endpoint.view.speculates = own.pays
        return changed

    def ended(self, placement: Placement, outcome: Outcome, *, speculative: bool) -> None:
        """Take in how long a request's tokens took, by its kind."""
        self.sent[speculative] += 1
        tokens, first, last = outcome.output_tokens, outcome.first_token, outcome.last_token
        if not outcome.stream or not tokens or tokens < 8 or first is None or last is None:
            return
        key = (placement.request.kind, speculative)
        if len(self._tpot) >= _MOST_KINDS and key not in self._tpot:
            return
        tpot = (last - first) / (tokens - 1)
        self._tpot[key] = self._tpot.get(key, tpot) * _FADE + tpot * (1 - _FADE)
        speed_up = self._speed_up(key[0])
        if speed_up is not None:
            self._usual.setdefault(key[0], WeeksAverage()).follow(speed_up, last)

    def speed_ups(self) -> dict[str, float]:
        """Return plain time per token over speculative, by kind, where both are known."""
        found = {kind: self._speed_up(kind) for kind, speculative in self._tpot if speculative}
        return {kind: speed_up for kind, speed_up in found.items() if speed_up is not None}

    def drifts(self) -> dict[str, float]:
        """Return how far each kind's speed-up lies above its average of about a week."""
        now = self.speed_ups()
        return {
            kind: now[kind] - usual.value
            for kind, usual in self._usual.items()
            if usual.value is not None and kind in now
        }

    def _speed_up(self, kind: str) -> float | None:
        plain, drafted = (self._tpot.get((kind, speculative)) for speculative in (False, True))
        return plain / drafted if plain and drafted else None

    def status(self, endpoint: Endpoint) -> SpeculationStatus | None:
        """Show one endpoint's; None where it does not speculate."""
        method = endpoint.section.speculative
        if method is None:
            return None
        own = self._acceptance(endpoint)
        return SpeculationStatus(method, own.pays, own.rate, own.length, own.drift)

    def _acceptance(self, endpoint: Endpoint) -> Acceptance:
        own = self._of.get(endpoint.name)
        if own is None:
            own = self._of[endpoint.name] = Acceptance(self._settings)
        return own


def _warmth(temperature: float) -> str:
    if temperature <= 0:
        return "t=0"
    return "t<=0.5" if temperature <= 0.5 else "t<=1" if temperature <= 1 else "t>1"
