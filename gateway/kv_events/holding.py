"""What one endpoint holds, as the reader knows it, and what of it is yet to be told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from forebay.prefixcache.recut import Recut
from forebay.prefixcache.tiers import NOWHERE, ONE, Tier, lowest

from .messages import Delta, State, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from forebay.prefixcache.events import Event

MOST_AT_ONCE = 512
"""Messages read, and blocks told, in one go."""


class Holding:
    """What one publisher (a data-parallel rank) tells of."""

    def __init__(self, block_tokens: int) -> None:
        self.recut = Recut(block_tokens)
        self.gaps: int = 0
        self.restarts: int = 0
        self.unread: int = 0
        self.batches: int = 0
        self.events: int = 0
        self.since = time.time()
        self.stored: dict[int, int] = {}
        """Blocks held from now on, and on which tier; likewise the next two."""
        self.removed: dict[int, None] = {}
        self.cleared = False
        self.told = dict[int, int]()
        """What was told of, where there are several."""

    def take(self, events: Iterable[Event]) -> None:
        """Take in events, in their order."""
        for event in events:
            self.events += 1
            if self.recut.apply(event, self.stored, self.removed):
                self.forget()

    def forget(self) -> None:
        """Hold nothing any more."""
        self.recut.clear()
        self.stored.clear()
        self.removed.clear()
        self.cleared = True
        self.since = time.time()

    def begin_anew(self) -> None:
        """Forget, and expect the numbers of another process."""
        self.forget()


class Holdings:
    """All that one endpoint's publishers tell of, as one."""

    unites = True
    """There may be several, so that a block is held until the last of them drops it."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self._tallies: dict[int, int] = {}
        """How many publishers hold a block on which tier, where they are united."""
        self._told: State | None = None

    def each(self) -> Sequence[Holding]:
        """Return each publisher's."""
        raise NotImplementedError

    def restarted(self, started: float) -> None:
        """Forget what was told before the engine's process began."""
        for one in self.each():
            if one.since < started:
                one.restarts += 1
                one.begin_anew()

    def deltas(self) -> Iterator[Delta]:
        """Return what has changed, in pieces."""
        for one in self.each():
            if one.cleared or one.stored or one.removed:
                yield from self._deltas_of(one)

    def _deltas_of(self, one: Holding) -> Iterator[Delta]:
        change = Change(one.cleared, list(one.removed), one.stored)
        one.cleared, one.removed, one.stored = False, {}, {}
        if self.unites:
            change = self._united(one, change)
        cleared, removed, new = change.cleared, change.removed, list(change.stored.items())
        while cleared or removed or new:
            gone, removed = removed[:MOST_AT_ONCE], removed[MOST_AT_ONCE:]
            here = [] if removed else new[:MOST_AT_ONCE]
            new = new[len(here) :]
            by_tier = [bytes_of(b for b, where in here if where == tier) for tier in Tier]
            yield Delta(self.ticket, cleared, bytes_of(gone), *by_tier)
            cleared = False

    def _united(self, one: Holding, change: Change) -> Change:
        """Return what no publisher holds any more, and what is nearer or farther than it was."""
        told = one.told
        gone, moved = self._take_out(told, tuple(told) if change.cleared else change.removed)
        self._put_in(told, change.stored, moved)
        if change.cleared and len(self._tallies) == len(moved):  # nobody else holds anything
            return Change(cleared=True, removed=[], stored=moved)
        return Change(
            cleared=False, removed=[block for block in gone if block not in moved], stored=moved
        )

    def _take_out(
        self, told: dict[int, int], blocks: Iterable[int]
    ) -> tuple[list[int], dict[int, int]]:
        """Return which of a publisher's blocks nobody holds now, and which lie farther away."""
        gone, moved = list[int](), dict[int, int]()
        for block in blocks:
            before = told.pop(block, NOWHERE)
            if before == NOWHERE:
                continue
            was, now = self._count(block, -ONE[before])
            if now == NOWHERE:
                gone.append(block)
            elif now != was:
                moved[block] = now
        return gone, moved

    def _put_in(self, told: dict[int, int], stored: dict[int, int], moved: dict[int, int]) -> None:
        """Note a publisher's blocks; add those that are nearer now, or new."""
        for block, tier in stored.items():
            before = told.get(block, NOWHERE)
            told[block] = tier
            less = ONE[before] if before != NOWHERE else 0
            was, now = self._count(block, ONE[tier] - less)
            if now != was or block in moved:
                moved[block] = now

    def _count(self, block: int, by: int) -> tuple[int, int]:
        """Change a block's tally; return its lowest tier before and after."""
        before = self._tallies.get(block, 0)
        after = before + by
        if after:
            self._tallies[block] = after
        else:
            self._tallies.pop(block, None)
        return lowest(before), lowest(after)

    def state(self) -> State | None:
        """Return how the source does, where that has changed."""
        all_ = self.each()
        state = State(
            self.ticket,
            sum(one.batches for one in all_),
            sum(one.events for one in all_),
            sum(one.gaps for one in all_),
            sum(one.restarts for one in all_),
            sum(one.unread for one in all_),
            sum(one.recut.orphans for one in all_),
            sum(len(one.recut) for one in all_),
        )
        if state == self._told:
            return None
        self._told = state
        return state


class Change(NamedTuple):
    """What is to be told: `cleared` comes first, then what is gone, then what is held."""

    cleared: bool
    removed: list[int]
    stored: dict[int, int]
