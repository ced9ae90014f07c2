"""How a pool's section arranges its scheduling: order, length predictor, journal.

A reload may arrange it anew at any time. What waits and runs is the pool's own and goes on.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import TYPE_CHECKING

from forebay.scheduler.build import journal_head, make_dispatcher
from forebay.scheduler.cost import Cost

from .feedback import Feedback
from .media import MediaTokens
from .scheduling import (
    JournalFile,
    Reading,
    Shared,
    journal_of,
    predictor_again,
    predictor_of,
    scheduling_of,
)

if TYPE_CHECKING:
    from forebay.gateway.config import sections
    from forebay.policies.contracts import Ordering
    from forebay.scheduler.build import Scheduling
    from forebay.scheduler.dispatch import Dispatcher
    from forebay.scheduler.length import Estimator

    from .prefix import PoolPrefix


class Arrangement:
    """One pool's; makes its dispatchers."""

    def __init__(self, section: sections.Pool, *, seed: int) -> None:
        self._take_predictor(section, predictor_of(section))
        self.settings: Scheduling = scheduling_of(section, Shared())
        self._section = section
        self._seed = seed
        self.media = MediaTokens()
        self._cost = Cost()
        path = section.scheduling.journal
        self._journal = None if path is None else JournalFile(path)

    def _take_predictor(self, section: sections.Pool, length: Estimator) -> None:
        self.length = length
        """Predicts how long answers will be."""
        self.reading = length if isinstance(length, Reading) else None
        """The same, where it reads prompts while they wait."""
        self.predicts = section.scheduling.predictor != "none"

    def take(self, section: sections.Pool, shared: Shared) -> bool:
        """Take a section; True when it asks for another dispatcher."""
        length = predictor_again(section, self._section, self.length)
        if length is not self.length:
            self._take_predictor(section, length)
        self._section = section
        settings = self._believed(scheduling_of(section, shared))
        journal = journal_of(section, self._journal)
        changed = settings != self.settings or journal is not self._journal
        self.settings, self._journal = settings, journal
        return changed

    def _believed(self, settings: Scheduling) -> Scheduling:
        """Return settings that order by length only while predictions are believed."""
        if self.reading is None or self.reading.trusted:
            return settings
        return dataclasses.replace(settings, predicts=False)

    def trust(self) -> None:
        """Order by length or not, since trust in predictions was lost or has come back."""
        believed = self.reading is None or self.reading.trusted
        self.settings = dataclasses.replace(self.settings, predicts=believed)

    def dispatcher(self, prefix: PoolPrefix | None) -> Dispatcher:
        """Make the dispatcher that is asked for; its endpoints and limits are set by the caller."""
        section, journal = self._section, self._journal
        if journal is not None:
            head = journal_head(self.settings, pool=section.name, seed=self._seed, cost=self._cost)
            journal.write(head)
        return make_dispatcher(
            self.settings,
            pool=section.name,
            rng=Random(self._seed),  # noqa: S311 - spreads ties, hides nothing
            max_requests=section.queue.max_requests,
            max_bytes=section.queue.max_bytes,
            cost=self._cost,
            uncached=None if prefix is None else prefix.uncached,
            score=None if prefix is None else prefix.score,
            journal=None if journal is None else journal.write,
        )

    def feedback(self, ordering: Ordering) -> Feedback:
        """Make what takes in how requests ended."""
        return Feedback(ordering, self.length, self._cost, self.media)

    def flush(self) -> None:
        """Write out the journal, and what the predictor logs."""
        if self._journal is not None:
            self._journal.flush()
        if self.reading is not None:
            self.reading.flush()

    def close(self) -> None:
        """Let go of the predictor's threads and files."""
        self.flush()
        if self.reading is not None:
            self.reading.close()
