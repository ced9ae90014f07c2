"""A pool's length predictor as it runs: prompts are read in a thread of their own, while they wait.

A request that is placed at once is not read: there is nothing to put in order. One that has to wait
is queued with the mean's estimate and read meanwhile; the answer, where it comes before its turn,
takes the estimate's place. What stands longer than the budget before the thread gets to it is
skipped, so a rush costs no more than the thread can do, and the event loop never waits.

Predictions are remembered by the prompt, model and limits; they are read one by one, since a batch
of sixteen costs an encoder sixteen times as much as one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from forebay.scheduler.length.live import LiveLength

from .length_features import features_of
from .telemetry.snapshot import LengthStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Outcome, Request
    from forebay.scheduler.length import LengthFeatures, LengthPredictor, Prediction
    from forebay.scheduler.length.gate import GateSettings
    from forebay.scheduler.length.rivals import Rivals

    from .intake import AnyBody
    from .outcomes import OutcomeLog

logger = logging.getLogger(__name__)

RESULTS = ("cached", "failed", "idle", "large", "late", "placed", "predicted")
"""What becomes of a request; `idle`: it never waited, `placed`: its turn came before reading."""
MOST_BYTES = 1 << 20
"""A longer body is not read: decoding it would hold up the event loop, thread or not."""
_MOST_REMEMBERED = 8192
_MOST_LOG = 16.0
"""No answer is as long as nine million tokens: what says so is broken."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Who reads prompts, and who would like to."""

    champion: LengthPredictor
    challenger: LengthPredictor | None = None


class _Job(NamedTuple):
    request: Request
    body: AnyBody
    answers: int
    asked: float


class _Read(NamedTuple):
    features: LengthFeatures
    prediction: Prediction
    rival: Prediction | None


class PoolLength:
    """Estimates at once, and better a few milliseconds later; see the module."""

    def __init__(  # noqa: PLR0913 - what a pool's section says, and what the pool does with it
        self,
        readers: Readers,
        *,
        pool: str,
        budget: float,
        gate: GateSettings | None = None,
        rivals: Rivals | None = None,
        outcomes: OutcomeLog | None = None,
    ) -> None:
        self.live = LiveLength(gate, rivals=rivals)
        self.results: Counter[str] = Counter()
        self.seconds = 0.0
        """Spent on reading, all together."""
        self.pool = pool
        self._budget = budget
        self._readers = readers
        self._outcomes = outcomes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"length-{pool}")
        self._known: OrderedDict[int, Prediction] = OrderedDict()
        self._failing = False
        self._rival_fails = False
        self._revise: Callable[[str, int], bool] = lambda _id, _tokens: False
        self._waits: Callable[[str], bool] = lambda _id: False
        self._trust: Callable[[], None] = lambda: None

    def bind(
        self,
        *,
        revise: Callable[[str, int], bool],
        waits: Callable[[str], bool],
        trust: Callable[[], None],
    ) -> None:
        """Take what a pool does: with a better estimate, and when trust is lost or returns."""
        self._revise, self._waits, self._trust = revise, waits, trust

    @property
    def trusted(self) -> bool:
        """Predictions are believed."""
        return self.live.trusted

    def estimate(self, features: LengthFeatures) -> int:
        """Return the predicted output tokens of all answers together, without reading."""
        return self.live.estimate(features)

    def ask(self, request: Request, body: AnyBody, answers: int) -> None:
        """Have a prompt read; `revise` is called on this loop when that is done."""
        if request.body_bytes > MOST_BYTES:
            self.results["large"] += 1
            return
        loop = asyncio.get_running_loop()
        job = _Job(request, body, answers, time.perf_counter())
        try:
            self._thread.submit(self._work, job, loop)
        except RuntimeError:  # the pool is leaving
            self.results["failed"] += 1

    def idle(self) -> None:
        """Count a request that did not have to wait, and so is not read."""
        self.results["idle"] += 1

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how a request ended."""
        trusted = self.live.trusted
        features = self.live.asked(request.id)
        self.live.learn(request, outcome)
        if self._outcomes is not None and features is not None:
            self._outcomes.write(features, outcome)
        if self.live.trusted != trusted:
            self._tell()
            self._trust()

    def status(self) -> LengthStatus:
        """Say how it does."""
        gate, rivals = self.live.gate, self.live.rivals
        return LengthStatus(
            trusted=gate.open,
            reason=gate.reason,
            closed_times=gate.closed_times,
            accuracy=gate.accuracy,
            tau=gate.tau,
            outcomes=gate.outcomes,
            results=tuple((name, self.results[name]) for name in RESULTS),
            seconds=self.seconds,
            challenger_share=None if rivals is None else rivals.share,
            changes=tuple(gate.changes),
        )

    def flush(self) -> None:
        """Write what the log of outcomes has buffered."""
        if self._outcomes is not None:
            self._outcomes.flush()

    def close(self) -> None:
        """Stop the thread; what it reads is forgotten."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._outcomes is not None:
            self._outcomes.close()

    def read(self, features: LengthFeatures) -> tuple[Prediction, bool]:
        """Return the champion's prediction, and whether it was remembered. For one thread."""
        text = features.text.encode("utf-8", "replace")
        beside = repr(features._replace(text="", prompt_tokens=0, hour=None)).encode()
        key = xxh3_64_intdigest(text, xxh3_64_intdigest(beside))
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known, True
        said = _said_by(self._readers.champion, features)
        self._known[key] = said
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        return said, False

    # -- the thread ------------------------------------------------------------------------------

    def _work(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        begun = time.perf_counter()
        if begun - job.asked > self._budget:
            self.results["late"] += 1
            return
        if not self._waits(job.request.id):
            self.results["placed"] += 1
            return
        try:
            hour = datetime.now(UTC).hour
            features = features_of(job.request, job.body, answers=job.answers, hour=hour)
            self._succeed()
            said, known = self.read(features)
            rival = self._rival(features)
        except Exception as error:  # noqa: BLE001 - a predictor may fail in its own ways, and must not stop the pool
            self._failed(error)
            return
        self.results["cached" if known else "predicted"] += 1
        self.seconds += time.perf_counter() - begun
        self._failing = False
        try:
            loop.call_soon_threadsafe(self._done, job.request.id, _Read(features, said, rival))
        except RuntimeError:  # the loop has ended
            return

    def _succeed(self) -> None:
        """Have the challenger alone read once it has taken over; forget what was said before."""
        challenger, rivals = self._readers.challenger, self.live.rivals
        if challenger is not None and rivals is not None and rivals.promoted:
            self._readers = Readers(challenger)
            self._known.clear()

    def _rival(self, features: LengthFeatures) -> Prediction | None:
        """Return the challenger's prediction; None where it is not asked, or fails."""
        challenger, rivals = self._readers.challenger, self.live.rivals
        if challenger is None or rivals is None or rivals.dropped:
            return None
        try:
            said = _said_by(challenger, features)
        except Exception as error:  # noqa: BLE001 - as with the champion, which goes on without it
            if not self._rival_fails:
                self._rival_fails = True
                extra = {"pool": self.pool, "reason": _reason(error)}
                logger.warning("challenging length predictor fails", extra=extra)
            return None
        self._rival_fails = False
        return said

    def _failed(self, error: Exception) -> None:
        self.results["failed"] += 1
        if not self._failing:
            self._failing = True
            extra = {"pool": self.pool, "reason": _reason(error)}
            logger.warning("length predictor fails; the mean stands in", extra=extra)

    # -- the loop --------------------------------------------------------------------------------

    def _done(self, request_id: str, read: _Read) -> None:
        tokens = self.live.take(request_id, read.features, read.prediction, read.rival)
        if tokens is not None:
            self._revise(request_id, tokens)

    def _tell(self) -> None:
        gate = self.live.gate
        extra = {"pool": self.pool, "accuracy": gate.accuracy, "tau": gate.tau}
        if gate.open:
            logger.info("length predictions are believed again", extra=extra)
        else:
            text = "length predictions are not believed; order is fair until they are good again"
            logger.warning(text, extra={**extra, "reason": gate.reason})


def _said_by(predictor: LengthPredictor, features: LengthFeatures) -> Prediction:
    """Return what a predictor says. Raises ValueError where that is no length."""
    (said,) = predictor.predict([features])
    if not abs(said.rank) < _MOST_LOG:  # so that NaN is none, either
        raise ValueError(f"a rank of {said.rank:g} is no logarithm of a length")
    return said


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
