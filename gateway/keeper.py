"""Counts what arms do, decides, and stores it.

Nothing here is on a request's path: an ended request leaves an observation, and the clock's tick
counts and judges. Where the store is shared, one replica holds the lease and decides for all on
everybody's counts; each takes over the state within a second, and sends nothing more to a candidate
that fails outright here without waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from forebay.policies.experiments.ramp import State, apply, by_hand, judge, outright

from .experiment_live import Live, anew, fits
from .experiments.observing import failed_observation, observe
from .experiments.store import ExperimentsAway, ExperimentsHeld, Kept, stage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay.policies.contracts import Outcome
    from forebay.policies.experiments.ramp import Decision, What
    from forebay.policies.experiments.tallies import Observation

    from .experiments.store import Store
    from .intake import Inbound
    from .trials import Assigned, Trial

logger = logging.getLogger(__name__)
audit = logging.getLogger("forebay.audit")

JUDGE_S = 0.5
"""Between two looks at counts that nothing bad was added to."""
SAVE_S = 1.0
_BACKLOG = 100_000


class Keeper:
    """All experiments of one process."""

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], float],
        clock: Callable[[], float] = time.time,
        stopped: Callable[[Trial, str, str], None] = lambda _trial, _arm, _why: None,
    ) -> None:
        """Begin with nothing; `stopped` is told of a candidate that is taken back, and why."""
        self.live: dict[str, Live] = {}
        self.store = store
        self.away = False
        self.dropped = 0
        """Observations that nobody had time for."""
        self.targets: Mapping[str, tuple[float, float]] = {}
        self._now = now
        self._clock = clock
        self._stopped = stopped
        self._seen: deque[tuple[str, str, Observation]] = deque()
        self._failed: dict[tuple[str, str], Assigned] = {}
        """Of each candidate, one request that failed in this turn of the loop."""
        self._leaving: list[Live] = []
        """Experiments that a reload took away, with something still to be stored."""
        self._exchange: asyncio.Task[None] | None = None
        self._exchanged = 0.0
        self._changes, self._storing = asyncio.Lock(), asyncio.Lock()

    # -- what is told ----------------------------------------------------------------------------

    def settled(self, inbound: Inbound, outcome: Outcome) -> None:
        """Take the outcome of a request that takes part."""
        assigned = inbound.trial
        assert assigned is not None
        if assigned.done:
            return
        assigned.done = True
        live = self.live.get(assigned.trial.name)
        if live is None:
            return
        seen = observe(
            outcome,
            assigned.arm,
            prompt_tokens=inbound.request.prompt_tokens_estimate,
            targets=self.targets,
            cold=self._is_cold(live, assigned),
        )
        if seen is not None:
            self._note(assigned, seen)

    def failed(self, assigned: Assigned, sla: str, prompt_tokens: int) -> None:
        """Take in that an arm could not serve a request, which goes elsewhere now."""
        if not assigned.done:
            assigned.done = True
            self._note(assigned, failed_observation(assigned.arm, sla, prompt_tokens))

    def _is_cold(self, live: Live, assigned: Assigned) -> bool:
        now = self._now()
        first = live.first.setdefault(assigned.arm, now)
        return now - first < assigned.trial.section.warmup

    def _note(self, assigned: Assigned, seen: Observation) -> None:
        if len(self._seen) >= _BACKLOG:
            self.dropped += 1
            return
        self._seen.append((assigned.trial.name, assigned.stage, seen))
        if seen.errors and assigned.candidate:
            # Soon, not now: a request is being settled, and a rollback moves others.
            if not self._failed:
                asyncio.get_running_loop().call_soon(self._look_at_failed)
            self._failed[assigned.trial.name, assigned.arm] = assigned

    def _look_at_failed(self) -> None:
        """Stop a candidate that fails outright with this very request, not at the next tick."""
        failed, self._failed = self._failed, {}
        self._fold()
        for assigned in failed.values():
            self._look_at(assigned)

    def _look_at(self, assigned: Assigned) -> None:
        live = self.live.get(assigned.trial.name)
        if live is None or live.trial is not assigned.trial or assigned.stage != live.trial.stage:
            return
        plan, counts = live.trial.plan, live.counts(assigned.stage)
        why = outright(plan, counts, assigned.arm)
        if not why or not dict(live.trial.weights).get(assigned.arm):
            return  # nothing is wrong, or it is stopped already
        if self.store.shared:
            logger.warning(
                "an arm gets nothing more here until it is decided for all",
                extra={"experiment": live.trial.name, "arm": assigned.arm, "reason": why},
            )
            live.trial.weights = tuple(
                (arm, 0.0 if arm == assigned.arm else weight) for arm, weight in live.trial.weights
            )
            self._exchanged = 0.0
        else:
            self._judge(live)

    def _fold(self) -> None:
        while self._seen:
            name, stage, seen = self._seen.popleft()
            live = self.live.get(name)
            if live is not None:
                live.counts(stage).add(seen)
                live.fresh = live.unsaved = True

    # -- by the clock ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Count, judge, and store what is due."""
        self._fold()
        if not self.store.shared:
            for live in self.live.values():
                if now - live.judged >= JUDGE_S and (live.fresh or live.trial.down()):
                    live.judged = now
                    self._judge(live)
        if now - self._exchanged >= SAVE_S and (self._exchange is None or self._exchange.done()):
            self._exchanged = now
            self._exchange = asyncio.get_running_loop().create_task(self._store_all())

    def _judge(self, live: Live) -> None:
        """Decide what is to be decided; where nobody else may."""
        live.fresh = False
        while (decision := self._next(live)) is not None:
            self._take(live, apply(live.trial.plan, live.state, decision), decision)

    def _next(self, live: Live) -> Decision | None:
        key = stage_key(live.state)
        down = live.trial.down()
        return judge(live.trial.plan, live.state, live.together(key), self._clock(), down=down)

    def _take(self, live: Live, state: State, decision: Decision) -> None:
        live.take(state)
        self._exchanged = 0.0  # to be stored at the next tick
        _tell(live.trial.name, decision)
        if decision.what == "roll back":
            self._stopped(live.trial, decision.arm, decision.why)

    async def _store_all(self) -> None:
        try:
            async with self._storing:
                while self._leaving:
                    leaving = self._leaving[0]
                    await self.store.save(leaving.trial.name, leaving.packed())
                    self._leaving.remove(leaving)
                for live in tuple(self.live.values()):
                    await self._store(live)
        except ExperimentsAway as error:
            self._lost(str(error))
        else:
            self._found()

    async def _store(self, live: Live) -> None:
        if live.unread:
            await self._recall(live)
        if live.unsaved:
            live.unsaved = False
            try:
                await self.store.save(live.trial.name, live.packed())
            except ExperimentsAway:
                live.unsaved = True
                raise
        if self.store.shared:
            await self._follow(live)

    async def _recall(self, live: Live) -> None:
        """Look for what an earlier process, or an earlier configuration, left of it."""
        try:
            kept = await self.store.load(live.trial.name)
        except ExperimentsAway as error:
            if self.store.shared or isinstance(error, ExperimentsHeld):
                raise
            self._lost(str(error))
            kept = None
        live.unread = False
        if kept is None:
            return
        live.begins = not fits(live.trial, kept.state)
        if live.begins:
            live.take(anew(kept, live.trial.plan.arms, self._clock()))
        elif self.store.shared:
            live.take(kept.state)
        else:
            live.resume(kept)

    async def _begin(self, live: Live) -> None:
        """Put a first state in the place of one of other arms, unless another replica has."""
        if await self.store.decide(live.trial.name, live.state):
            live.begins = False
        else:
            live.unread = True  # there is another by now: look at it, and try again

    async def _follow(self, live: Live) -> None:
        """Take over what the others did, and decide where this replica is the one to."""
        async with self._changes:
            if live.begins:
                await self._begin(live)
            await self._reread(live)
            while await self.store.leads() and (decision := self._next(live)) is not None:
                if not await self._commit(live, decision):
                    return

    async def _reread(self, live: Live) -> None:
        kept = await self.store.load(live.trial.name)
        if kept is None:
            live.unsaved = True  # it was forgotten there
            return
        if not fits(live.trial, kept.state):
            return  # of a replica whose file names other arms: it says nothing about these
        live.hear(kept)
        if kept.state != live.state:
            gone = set(kept.state.out) - set(live.state.out)
            live.take(kept.state)
            for arm in gone:
                self._stopped(live.trial, arm, kept.state.log[-1].why if kept.state.log else "")

    async def _commit(self, live: Live, decision: Decision) -> bool:
        state = apply(live.trial.plan, live.state, decision)
        if not await self.store.decide(live.trial.name, state):
            return False  # another was first
        self._take(live, state, decision)
        return True

    def _lost(self, why: str) -> None:
        if not self.away:
            logger.warning("experiments cannot be stored; they go on here", extra={"reason": why})
        self.away = True

    def _found(self) -> None:
        if self.away:
            logger.info("experiments are stored again")
        self.away = False

    # -- from outside ----------------------------------------------------------------------------

    async def start(self, trials: Iterable[Trial]) -> None:
        """Take up the experiments where they were left."""
        for trial in trials:
            try:
                kept = await self.store.load(trial.name)
            except ExperimentsAway as error:
                self._lost(str(error))
                self._add(trial, None)
                held = isinstance(error, ExperimentsHeld)
                self.live[trial.name].unread = self.store.shared or held
            else:
                self._add(trial, kept)

    def configure(self, trials: Iterable[Trial]) -> None:
        """Take other experiments; those that go on by name keep their state and counts.

        What is kept of one that was not there before is looked for at the next tick.
        """
        self._fold()
        before, self.live = self.live, {}
        for trial in trials:
            known = before.pop(trial.name, None)
            self._add(trial, None if known is None else known.packed(), ours=True)
            live = self.live[trial.name]
            if known is None:
                live.unread = True
                self._exchanged = 0.0
            else:
                live.first = known.first
                live.unread = known.unread
                live.begins = live.begins or known.begins
        self._leaving += [live for live in before.values() if live.unsaved and not live.unread]

    def _add(self, trial: Trial, kept: Kept | None, *, ours: bool = False) -> None:
        begins = kept is not None and not fits(trial, kept.state)
        if kept is None or begins:
            kept = Kept(state=anew(kept, trial.plan.arms, self._clock()))
        elif self.store.shared and not ours:
            kept = Kept(state=kept.state)  # the counts are the others', or an earlier process's
        self.live[trial.name] = live = Live(trial, kept)
        live.begins = begins
        live.unsaved = live.fresh = True

    async def decide(self, name: str, what: What, *, arm: str, who: str) -> State:
        """Do what a person asks for.

        Raises LookupError for a name that is none, ValueError for what makes no sense now, and
        ExperimentsAway.
        """
        live = self.live[name]
        async with self._changes:
            for _ in range(3):
                if self.store.shared:
                    await self._reread(live)
                state = live.state
                now = self._clock()
                decision = by_hand(live.trial.plan, state, what, arm=arm, who=who, now=now)
                if not self.store.shared:
                    self._take(live, apply(live.trial.plan, state, decision), decision)
                    await self._store_all()
                    return live.state
                if await self._commit(live, decision):
                    return live.state
        raise ExperimentsAway("other replicas decide at the same time; try again")

    async def close(self) -> None:
        """Store what is left."""
        if self._exchange is not None:
            await asyncio.gather(self._exchange, return_exceptions=True)
        self._fold()
        await self._store_all()
        await self.store.close()


def _tell(name: str, decision: Decision) -> None:
    audit.info(
        "experiment decision",
        extra={
            "action": decision.what,
            "who": decision.who,
            "experiment": name,
            "arm": decision.arm,
            "stage": decision.stage,
            "requests": decision.requests,
            "reason": decision.why,
        },
    )
