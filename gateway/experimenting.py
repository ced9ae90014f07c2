"""The whole of a process's experiments, from its configuration: places, keeper, store, end."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from .experiments.store import Nowhere
from .experiments.store_file import FileStore
from .keeper import Keeper
from .participation import Participation
from .quality import Quality
from .shadow import Shadow
from .telemetry.snapshot import ExperimentStatus
from .trials import Trials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from forebay.gateway.config.sections import Config
    from forebay.policies.experiments.answers import ShadowTally

    from .app import App
    from .experiment_report import Report
    from .experiments.store import Store
    from .pools import Pool
    from .trials import Trial

logger = logging.getLogger(__name__)

FOLDER = "forebay-experiments"
_ANY = float("inf")
_AFTER_A_BUG_S = 10.0
_LEAVES_RUNNING = ("errors", "no endpoint")
"""Beginnings of reasons for which an answer that has not begun will hardly come."""


def folder_of(config: Config, file: Path | None) -> Path | None:
    """Return where experiments are kept without Redis; None where they are not.

    A relative name counts from the folder of the configuration file.
    """
    if config.state.url is not None or (file is None and config.state.experiments is None):
        return None
    from pathlib import Path  # noqa: PLC0415 - only here is one made

    folder = Path() if file is None else file.parent
    return folder / (config.state.experiments or FOLDER)


def store_of(config: Config, file: Path | None) -> Store:
    """Make what keeps experiments."""
    if config.state.url is not None:
        from .experiments.store_redis import RedisExperiments  # noqa: PLC0415 - the redis client takes 150 ms

        return RedisExperiments(config.state.url.get_secret_value())
    folder = folder_of(config, file)
    return Nowhere() if folder is None else FileStore(folder)


def _copies(tallies: Iterable[ShadowTally]) -> dict[str, int]:
    kinds: list[str] = ["same", "different", "sampled", "failed", "dropped"]
    found = dict.fromkeys(kinds, 0)
    for tally in tallies:
        found["same"] += tally.exact
        found["different"] += tally.copies - tally.exact
        found["sampled"] += tally.sampled
        found["failed"] += tally.failed
        found["dropped"] += tally.dropped
    return found


class Experiments:
    """All experiments of one process."""

    def __init__(self, config: Config, file: Path | None, *, now: Callable[[], float]) -> None:
        self._store = store_of(config, file) if config.experiments else None
        self._file = file
        self._now = now
        self._app: App
        self.keeper: Keeper | None = None
        self.shadow: Shadow | None = None
        self.quality: Quality | None = None
        self._again = 0.0

    async def start(self, app: App) -> None:
        """Take up where the last process was."""
        self._app = app
        trials = self._take(app.config)
        if self.keeper is not None:
            await self.keeper.start(trials)

    def configure(self, config: Config) -> None:
        """Take a reloaded configuration; the application has its pools already."""
        trials = self._take(config)
        if self.keeper is not None:
            self.keeper.configure(trials)

    def _take(self, config: Config) -> list[Trial]:
        app = self._app
        if config.experiments and self.keeper is None:
            store = self._store or store_of(config, self._file)
            self.keeper = Keeper(store, now=self._now, stopped=self._stopped)
        if self.shadow is None and any(each.shadow for each in config.experiments):
            self.shadow = Shadow(
                now=self._now, crowded=self._is_crowded, tallies=self._shadow_tallies
            )
        if any(pool.quality for pool in config.pools) and self.quality is None:
            self.quality = Quality(now=self._now, gone=self._gone)
        if self.quality is not None:
            self.quality.configure(app.pools.values())
        found = Trials(config, app.pools) if config.experiments else None
        if self.keeper is not None or self.quality is not None:
            app.preparation.participation = Participation(
                found, self.keeper, self.shadow, self.quality
            )
        if self.keeper is not None:
            self.keeper.targets = {
                name: (sla.ttft or _ANY, sla.tpot or _ANY)
                for name, sla in config.sla.items()
                if sla.ttft or sla.tpot
            }
        return [] if found is None else found.all

    def _gone(self, pool: Pool) -> frozenset[str]:
        """Return a pool's endpoints that are candidates taken back: nothing goes to them."""
        part = self._app.preparation.participation
        trials = None if part is None else part.trials
        mine = () if trials is None else [each for each in trials.all if each.pool is pool]
        return frozenset[str]().union(*(each.gone for each in mine))

    def _stopped(self, trial: Trial, arm: str, why: str) -> None:
        """Take back what has not begun to be answered by an arm."""
        if self.quality is not None:
            self.quality.look_again(trial.pool)
        running = why.startswith(_LEAVES_RUNNING)
        for relay in tuple(self._app.active):
            mine = relay.inbound.trial
            if mine is None or mine.trial.name != trial.name or not mine.candidate:
                continue
            if arm in {"", mine.arm}:
                relay.take_back(running=running)

    def _shadow_tallies(self, name: str) -> dict[str, ShadowTally]:
        live = None if self.keeper is None else self.keeper.live.get(name)
        if live is None:
            return {}
        live.unsaved = True
        return live.kept.shadow

    def _is_crowded(self) -> bool:
        return self._app.buffered_bytes > self._app.config.server.max_buffered / 2

    def tick(self, now: float) -> None:
        """Do what is done by the clock; a bug here must not hold up anything else."""
        if now < self._again:
            return
        try:
            self._tick(now)
        except Exception:
            self._again = now + _AFTER_A_BUG_S
            logger.exception("experiments failed; requests go on")

    def _tick(self, now: float) -> None:
        if self.shadow is not None:
            self.shadow.tick(now)
        if self.quality is not None:
            self.quality.tick(now)
        if self.keeper is not None:
            self.keeper.tick(now)

    @property
    def away(self) -> bool:
        """Whether what is counted cannot be stored."""
        return self.keeper is not None and self.keeper.away

    def status(self) -> tuple[ExperimentStatus, ...]:
        """Return what metrics say of each experiment."""
        live = () if self.keeper is None else self.keeper.live.values()
        return tuple(
            ExperimentStatus(
                each.trial.name,
                each.state.phase,
                each.state.version,
                dict(each.trial.weights),
                _copies(each.kept.shadow.values()) if each.trial.section.shadow else {},
            )
            for each in live
        )

    def reports(self, name: str | None = None) -> list[Report]:
        """Return what is known of all experiments, or of one."""
        from .experiment_report import report_of  # noqa: PLC0415 - only who asks needs it

        live = {} if self.keeper is None else self.keeper.live
        now = time.time()
        found = [report_of(each, now) for each in live.values() if name in {None, each.trial.name}]
        if self.shadow is not None:
            for report in found:
                if report.shadow is not None:
                    report.shadow["pairs"] = list(self.shadow.pairs.get(report.name, ()))
        return found

    async def close(self) -> None:
        """Store what is left."""
        if self.shadow is not None:
            self.shadow.close()
        if self.keeper is not None:
            await self.keeper.close()
