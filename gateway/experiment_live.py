"""One experiment as it runs in this process: its state, its counts, and those of other replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from forebay.policies.experiments.ramp import State
from forebay.policies.experiments.tallies import Tallies

if TYPE_CHECKING:
    from forebay.policies.experiments.answers import ShadowTally

    from .experiments.store import Kept, Rows
    from .trials import Trial


class Live:
    """One experiment as it runs."""

    def __init__(self, trial: Trial, kept: Kept) -> None:
        self.trial = trial
        self.kept = kept
        """State, and this replica's counts (where the store is not shared: all there are)."""
        self.stages = {key: Tallies.from_rows(rows) for key, rows in kept.stages.items()}
        self.others: dict[str, Tallies] = {}
        """What other replicas have counted, by stage."""
        self._heard: dict[str, Rows] = {}
        """What `others` was made of."""
        self.others_shadow: dict[str, ShadowTally] = {}
        """What copies showed there, by bucket."""
        self.first: dict[str, float] = {}
        """When each arm's first request ended here."""
        self.judged = 0.0
        self.fresh = self.unsaved = False
        self.begins = False
        """Its state is to take the place of one of other arms."""
        self.unread = False
        """What the store keeps of it has not been looked at."""
        trial.take(kept.state)

    @property
    def state(self) -> State:
        """Where it is."""
        return self.kept.state

    def counts(self, key: str) -> Tallies:
        """Return this replica's counts of a stage."""
        found = self.stages.get(key)
        if found is None:
            found = self.stages[key] = Tallies()
        return found

    def together(self, key: str) -> Tallies:
        """Return all replicas' counts of a stage."""
        mine, others = self.counts(key), self.others.get(key)
        if others is None:
            return mine
        whole = Tallies()
        whole.merge(mine)
        whole.merge(others)
        return whole

    def whole(self) -> Tallies:
        """Return all counts of this run, all stages added up: for reports, not for tests."""
        whole, run = Tallies(), f"{self.state.run}."
        for key in {*self.stages, *self.others}:
            if key.startswith(run):
                whole.merge(self.together(key))
        return whole

    def take(self, state: State) -> None:
        """Take a state."""
        self.kept.state = state
        self.trial.take(state)
        self.unsaved = True

    def hear(self, kept: Kept) -> None:
        """Take what other replicas have counted; a list that is the same one says nothing new."""
        before, heard = self._heard, kept.stages
        self.others = {
            key: self.others[key] if before.get(key) is rows else Tallies.from_rows(rows)
            for key, rows in heard.items()
        }
        self._heard, self.others_shadow = heard, kept.shadow

    def resume(self, kept: Kept) -> None:
        """Go on with what was kept, in place of what was begun without it."""
        self.kept = kept
        self.stages = {key: Tallies.from_rows(rows) for key, rows in kept.stages.items()}
        self.take(kept.state)

    def packed(self) -> Kept:
        """Return what is to be stored."""
        self.kept.stages = {key: tallies.as_rows() for key, tallies in self.stages.items()}
        return self.kept


def anew(kept: Kept | None, arms: tuple[str, ...], now: float) -> State:
    """Make a first state, at Unix time `now`; after one of other arms, it is another run's."""
    first = State(since=now, began=now, arms=arms)
    if kept is None:
        return first
    return replace(first, run=kept.state.run + 1, version=kept.state.version + 1)


def fits(trial: Trial, state: State) -> bool:
    """Whether a state is one of these arms'."""
    return state.arms == trial.plan.arms
