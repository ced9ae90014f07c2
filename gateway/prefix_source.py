"""What one endpoint's events say of its cache, as the pool's index takes it in.

waiting   events are read, and none has come yet
live      they come: the engine says itself what it holds
silent    prompts were answered that must have been told of, and nothing came: events are off,
or published elsewhere. Reported, and not trusted until one comes
away      the reader is gone; it begins anew by itself
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.prefixcache.slots import Source
from forebay.prefixcache.tiers import Tier

from .kv_events.messages import State, blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.prefixcache.index import Index
    from forebay.prefixcache.learned import Learned

    from .kv_events.messages import Delta

logger = logging.getLogger(__name__)

UNTOLD = 5
"""Answered prompts in a row without an event that make a source silent."""
PATIENCE_S = 10.0


class EndpointEvents:
    """Listens for one endpoint (`kv_events.feed.Listener`)."""

    def __init__(
        self, pool: str, endpoint: str, *, index: Index, learned: Learned, named: bool
    ) -> None:
        """`named`: prompts have token ids, so that what events say can be found."""
        self.status = "waiting"
        self.count = State(0, 0, 0, 0, 0, 0, 0, 0)
        self._labels = {"pool": pool, "endpoint": endpoint}
        self._endpoint = endpoint
        self._index = index
        self._learned = learned
        self._named = named
        self.engine_restarted: Callable[[float], None] | None = None
        """Tells the reader when the engine's process began."""
        self._untold = 0
        self._since = 0.0

    def delta(self, delta: Delta) -> None:
        """See Listener."""
        index, endpoint = self._index, self._endpoint
        self._live()
        if delta.cleared:
            if self._named:
                index.clear(endpoint, Source.EXACT)
            self._learned.cleared(endpoint)
        if not self._named:
            return
        if delta.removed:
            gone = blocks_of(delta.removed)
            index.remove(endpoint, gone, Source.EXACT)  # type: ignore[arg-type]  # hashes from the reader
            index.remove(endpoint, gone)  # type: ignore[arg-type]  # likewise
        for blocks, tier in zip((delta.stored, delta.host, delta.disk), Tier, strict=True):
            if blocks:
                index.hold(endpoint, blocks_of(blocks), tier)  # type: ignore[arg-type]  # likewise

    def state(self, state: State) -> None:
        """See Listener."""
        if state.error:
            logger.error("KV events cannot be read", extra={**self._labels, "reason": state.error})
        if state.batches > self.count.batches:
            self._live()
        self.count = state

    def away(self) -> None:
        """See Listener."""
        self._index.clear(self._endpoint, Source.EXACT)
        self._learned.told.discard(self._endpoint)
        self.status = "away"
        self._untold = 0

    def answered(self, now: float) -> None:
        """Take in that a prompt was answered whose blocks must be told of."""
        if not self._untold:
            self._since = now
        self._untold += 1
        if self._untold >= UNTOLD and now - self._since >= PATIENCE_S:
            self._silent()

    def _live(self) -> None:
        self._untold = 0
        if self.status != "live":
            if self.status == "silent":
                logger.info("KV events come again", extra=self._labels)
            self.status = "live"
            if self._named:
                self._learned.told.add(self._endpoint)

    def _silent(self) -> None:
        if self.status in ("live", "waiting"):
            text = "no KV events come; see that the engine's are on, or 'bind: true' if it connects"
            logger.warning(text, extra=self._labels)
            self.status = "silent"
            self._index.clear(self._endpoint, Source.EXACT)
            self._learned.told.discard(self._endpoint)
