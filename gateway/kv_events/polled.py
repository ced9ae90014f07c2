"""One endpoint's events where it is asked for them, in the reader's process: no sockets here.

The gateway asks, or hears from the replica that does, and hands each answer on as it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.prefixcache.events import Verdict
from forebay.prefixcache.polled import Numbers, read_answer

from .holding import Holding, Holdings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.prefixcache.polled import Told

    from .messages import Watch

MOST_RANKS = 64


class Rank(Holding):
    """What one attention-data-parallel rank tells of."""

    def __init__(self, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self._numbers = Numbers()
        self._window = 0
        """The greatest that was told of: its events alone are of whole prefixes."""

    def begin_anew(self) -> None:
        """Forget, and expect the numbers of another process."""
        self.forget()
        self._numbers.forget()
        self._window = 0

    def judge(self, told: Told) -> None:
        """Take in one event, after what its number says of those before it."""
        verdict = self._numbers.judge(told.number)
        if verdict is Verdict.GAP:
            self.gaps += 1
            self.forget()
        elif verdict is Verdict.RESTARTED:
            self.restarts += 1
            self.forget()
            self._window = 0
        if told.window < self._window:
            return
        if told.window > self._window > 0:
            self.forget()
        self._window = told.window
        self.take(told.events)


class PolledSource(Holdings):
    """All ranks of one endpoint; they show themselves."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch.ticket)
        self.publishers: tuple[()] = ()
        """No sockets to wait for."""
        self._block_tokens = watch.block_tokens
        self._first = Rank(watch.block_tokens)
        self._by_rank = {0: self._first}

    def each(self) -> Sequence[Rank]:
        """See Holdings."""
        return tuple(self._by_rank.values())

    def close(self) -> None:
        """Nothing to close."""

    def answered(self, body: bytes) -> None:
        """Take in what the engine answered."""
        try:
            told, unread = read_answer(body)
        except ValueError:
            self._first.unread += 1
            return
        self._first.unread += unread
        self._first.batches += bool(told)
        for one in told:
            rank = self._by_rank.get(one.rank)
            if rank is None and 0 <= one.rank < MOST_RANKS:
                rank = self._by_rank[one.rank] = Rank(self._block_tokens)
            if rank is not None:
                rank.judge(one)
