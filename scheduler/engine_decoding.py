"""The decoding sequences of one modelled engine, which are never looped over.

All of them advance together, with one tick counter. A sequence is touched when it comes to the end
of a block (it sits in the bucket of its phase) and when it ends (it is filed under its last tick).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from .engine_sequence import Phase

if TYPE_CHECKING:
    from .engine_sequence import Sequence


class Decoding:
    """Sequences that make one token a tick. The model moves `ticks` and, with it, `context`."""

    __slots__ = ("_end_ticks", "_ends", "_size", "buckets", "context", "count", "ticks")

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.context = 0
        """Tokens that they look back at in one step, all together."""
        self.ticks = 0
        self.buckets: list[dict[Sequence, None]] = [{} for _ in range(block_tokens)]
        """By phase: those in bucket `ticks % block_tokens` need a new block for the next token."""
        self._size = block_tokens
        self._ends: dict[int, list[Sequence]] = {}
        self._end_ticks: list[int] = []

    @property
    def bucket(self) -> dict[Sequence, None]:
        """Those that stand at the end of a block."""
        return self.buckets[self.ticks % self._size]

    @property
    def next_end(self) -> int:
        """The tick at which the next one may end; only while some decode."""
        return self._end_ticks[0]

    def made(self, sequence: Sequence) -> int:
        """Count the output tokens that one of them has made."""
        return sequence.made + self.ticks - sequence.since

    def join(self, sequence: Sequence) -> None:
        """Take in one whose prompt is computed."""
        sequence.phase = Phase.DECODE
        sequence.since = self.ticks
        self.count += 1
        self.context += sequence.computed
        self.buckets[(self.ticks - sequence.computed) % self._size][sequence] = None
        end = self.ticks + sequence.output_tokens - sequence.made
        if end in self._ends:
            self._ends[end].append(sequence)
        else:
            self._ends[end] = [sequence]
            heappush(self._end_ticks, end)

    def leave(self, sequence: Sequence) -> None:
        """Let one go, with what it has made and computed written into it."""
        made = self.made(sequence)
        computed = sequence.prompt_tokens + made - 1
        self.context -= computed
        self.count -= 1
        del self.buckets[(sequence.since - sequence.computed) % self._size][sequence]
        sequence.made, sequence.computed = made, computed

    def due(self) -> list[Sequence]:
        """Remove from the ends, and return, those that have now made all their tokens."""
        ticks, ends = self.ticks, self._end_ticks
        if not ends or ends[0] > ticks:
            return []
        while ends and ends[0] <= ticks:
            heappop(ends)
        # An aborted or preempted one still stands here; its tick is then another.
        return [
            sequence
            for sequence in self._ends.pop(ticks, ())
            if sequence.phase is Phase.DECODE and self.made(sequence) == sequence.output_tokens
        ]
