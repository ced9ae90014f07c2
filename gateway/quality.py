"""Looks at a share of a pool's answers, and moves traffic away from an endpoint that has gone bad.

A request that is looked at keeps a copy of its answer; it is read one a tick, after the caller has
it. What is found out of an endpoint is told to nobody but its own health.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from forebay.policies.contracts import Finish
from forebay.policies.experiments.answers import is_json, is_repeated
from forebay.policies.experiments.assignment import uniform
from forebay.policies.experiments.quality import (
    KINDS,
    EndpointQuality,
    QualityLimits,
    out_of,
)

from .copies import Copy
from .experiments.reading import asks_json, said_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.gateway.config.experiments import Quality as Section
    from forebay.policies.contracts import Outcome

    from .endpoint import Endpoint
    from .intake import Inbound
    from .pools import Pool

logger = logging.getLogger(__name__)

_MOST = 256
"""Answers that wait to be read."""
_A_TICK = 16
"""Read at once: a millisecond or two."""


class Quality:
    """The endpoints of all pools that are looked at."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        gone: Callable[[Pool], frozenset[str]] = lambda _pool: frozenset(),
    ) -> None:
        """Begin with nothing; `gone` names a pool's endpoints that get no requests anyway."""
        self._now = now
        self._gone = gone
        self._sections: dict[str, Section] = {}
        self._known: dict[Endpoint, EndpointQuality] = {}
        self._waiting: deque[tuple[Pool, str, Copy]] = deque(maxlen=_MOST)

    @property
    def waiting(self) -> int:
        """How many answers are not read yet."""
        return len(self._waiting)

    def configure(self, pools: Iterable[Pool]) -> None:
        """Take the pools of a configuration; what is suspect stays so until its time."""
        pools = list(pools)
        self._sections = {p.name: p.section.quality for p in pools if p.section.quality is not None}
        kept = {e for p in pools if p.name in self._sections for e in p.endpoints.values()}
        self._known = {e: known for e, known in self._known.items() if e in kept}
        for pool in pools:
            if pool.name not in self._sections:
                self._let_back(pool)

    def choose(self, inbound: Inbound) -> None:
        """Keep a copy of the answer, if it is to be looked at."""
        section = self._sections.get(inbound.pool.name)
        if section is None or inbound.copy is not None:
            return
        if uniform("quality", inbound.call.request_id.encode()) < section.share:
            inbound.copy = Copy(inbound)

    def settled(self, inbound: Inbound, outcome: Outcome) -> None:
        """Take an answer that is finished."""
        copy = inbound.copy
        if copy is not None and copy.fits and outcome.finish is Finish.COMPLETED:
            self._waiting.append((inbound.pool, outcome.endpoint, copy))

    def tick(self, now: float) -> None:
        """Read some answers, and let back who was out long enough."""
        for _ in range(min(_A_TICK, len(self._waiting))):
            self._read(*self._waiting.popleft())
        for endpoint, known in self._known.items():
            if known.tick(now) and endpoint.health.suspect:
                endpoint.health.suspect = ""
                logger.info("endpoint's answers count again", extra={"endpoint": endpoint.name})

    def _read(self, pool: Pool, name: str, copy: Copy) -> None:
        endpoint, section = pool.endpoints.get(name), self._sections.get(pool.name)
        if endpoint is None or section is None:
            return
        said = said_in(copy.call.route, copy.answer, streamed=copy.streamed)
        found = {"empty": not said.text, "repeated": is_repeated(said.text)}
        if asks_json(copy.body.members):
            found["broken_json"] = not is_json(said.text)
        known = self._known.get(endpoint)
        if known is None:
            known = self._known[endpoint] = EndpointQuality(_limits(section), self._now())
        why = known.add(found, self._now())
        if why:
            logger.warning(
                "endpoint's answers have become bad",
                extra={"pool": pool.name, "endpoint": name, "reason": why},
            )
            self.look_again(pool)

    def look_again(self, pool: Pool) -> None:
        """Settle who of a pool gets nothing more; again when others of it stop serving."""
        if pool.name not in self._sections:
            return
        now, idle = self._now(), self._gone(pool)
        usable = [
            e.name
            for e in pool.endpoints.values()
            if e.name not in idle and (e.view.usable or e.health.suspect)
        ]
        suspects = {e.name: known.why for e, known in self._known.items() if known.until > now}
        gone = out_of(suspects, usable)
        for endpoint in pool.endpoints.values():
            endpoint.health.suspect = suspects[endpoint.name] if endpoint.name in gone else ""
            pool.upkeep.refresh(endpoint, now)

    def _let_back(self, pool: Pool) -> None:
        for endpoint in pool.endpoints.values():
            endpoint.health.suspect = ""


def _limits(section: Section) -> QualityLimits:
    limits = {kind: getattr(section, kind) for kind in KINDS}
    return QualityLimits(limits, window_s=section.window, out_s=section.out)
