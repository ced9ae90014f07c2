"""Whether the shared counters are there, said once for each change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

HOLD_S = 60.0


class Breaker:
    """Away from the first call without an answer until all that is owed has been told."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.away = False
        self.replicas = 1
        """That shared the counters lately, this one included."""
        self.times_away = 0
        self._now = now
        self._since = 0.0
        self._counted = 0.0

    def lost(self, reason: str) -> bool:
        """Note that a call had no answer; True when that is news."""
        if self.away:
            return False
        self.away, self._since = True, self._now()
        self.times_away += 1
        logger.warning(
            "shared counters are away; each tenant goes on as its 'fail' says",
            extra={"reason": reason, "replicas": self.replicas},
        )
        return True

    def counted(self, replicas: int) -> None:
        """Note how many replicas there are; fewer are believed a minute later only.

        When the store has just come back, most have not yet said that they are there.
        """
        now = self._now()
        if replicas >= self.replicas or now - self._counted > HOLD_S:
            self.replicas, self._counted = max(1, replicas), now

    def found(self) -> None:
        """Note that the counters are there again and know all that happened meanwhile."""
        self.away = False
        self._counted = self._now()
        logger.info(
            "shared counters are back", extra={"away_s": round(self._now() - self._since, 3)}
        )
