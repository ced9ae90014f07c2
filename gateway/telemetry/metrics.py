"""Metrics: cheap to write on the event loop, folded in batches, rendered elsewhere.

Three moments. `settled` only remembers an outcome. `fold`, once a loop turn or every 100 ms, turns
the outcomes into counts. `render`, in another thread, takes the lock, copies the counts, and turns
the copy into text without it. The loop never waits for that lock: a fold that finds it taken leaves
the outcomes for the next.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

from forebay.policies.contracts import Finish

from . import catalog
from .codes import OTHER
from .counts import MAX_SETS, Copied, Counter, PoolCount, PoolTotals, RequestCount, TokenCount
from .histogram import PAUSE_BOUNDS, QUEUE_BOUNDS, TPOT_BOUNDS, TTFT_BOUNDS, Histogram
from .labels import finish_label, route_label, state_label, status_label
from .outcome_labels import FAILED, arm_result, met, phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forebay.policies.contracts import Outcome

    from .histogram import HistogramCopy
    from .labels import Labels, LabelSpace
    from .metric import Metric
    from .snapshot import Snapshot

MAX_CACHED = 8192
"""Outcomes' raw names that have been looked up before."""


class Metrics:
    """All counts of one process. Write from the loop's thread; read from any."""

    def __init__(self, labels: LabelSpace) -> None:
        self._labels = labels
        self._lock = Lock()
        self._pending: deque[Outcome] = deque()
        self.settled: Callable[[Outcome], None] = self._pending.append
        """Remember how one request ended, for the next fold."""
        self.loop_pause = Histogram(PAUSE_BOUNDS)
        self._pools = {name: PoolCount() for name in ("", OTHER, *labels.pools)}
        self._requests: dict[Labels, RequestCount] = {}
        self._tokens: dict[Labels, TokenCount] = {}
        self._requests_by_name: dict[tuple[object, ...], RequestCount] = {}
        self._tokens_by_name: dict[tuple[str, str, str], TokenCount] = {}
        self._disconnects = Counter(catalog.DISCONNECTS)
        self._refused = Counter(catalog.RETRIES_REFUSED)
        self._goodput = Counter(catalog.SLA_REQUESTS)
        self._stripped = Counter(catalog.STRIPPED_FIELDS)
        self._transitions = Counter(catalog.TRANSITIONS)
        self._moved = Counter(catalog.MOVED)
        self._arm_requests = Counter(catalog.ARM_REQUESTS)
        self._counters = (
            *(self._disconnects, self._refused, self._stripped, self._transitions, self._moved),
            *(self._goodput, self._arm_requests),
        )
        self._arms: dict[Labels, tuple[Histogram, Histogram]] = {}
        """TTFT and TPOT by experiment and arm."""

    def itl(self, pool: str) -> Histogram:
        """Return the pool's histogram of gaps: a relay holds it and observes each chunk."""
        return self._pools[self._labels.pool(pool)].itl

    def stripped(self, pool: str, field: str) -> None:
        """Count a control field that was taken out of a caller's request."""
        self._stripped.add((self._labels.pool(pool), self._labels.field(field)))

    def retry_refused(self, pool: str) -> None:
        """Count a retry that the budget did not allow."""
        self._refused.add((self._labels.pool(pool),))

    def moved(self, pool: str, reason: str) -> None:
        """Count a request that went on at another arm or pool."""
        self._moved.add((self._labels.pool(pool), reason))

    def transition(self, pool: str, endpoint: str, state: str) -> None:
        """Count that an endpoint came into a state."""
        labels = self._labels
        name = labels.endpoint(pool, endpoint)
        self._transitions.add((labels.pool(pool), name, state_label(state)))

    def fold(self) -> None:
        """Turn the outcomes since the last fold into counts; never waits."""
        if not self._pending or not self._lock.acquire(blocking=False):
            return
        try:
            self._drain()
        finally:
            self._lock.release()

    def relabel(self, labels: LabelSpace) -> None:
        """Take a reloaded configuration's names: those that stay keep their counts.

        For the loop's thread, as all writing.
        """
        with self._lock:
            self._drain()
            self._labels = labels
            names = ("", OTHER, *labels.pools)
            self._pools = {name: self._pools.get(name) or PoolCount() for name in names}
            self._requests_by_name.clear()
            self._tokens_by_name.clear()
            self._forget_unknown(labels)

    def totals(self) -> dict[str, PoolTotals]:
        """Sum up each pool of the configuration."""
        with self._lock:
            self._drain()
            return {name: self._totals(name) for name in self._labels.pools}

    def copy(self) -> Copied:
        """Copy all counts, outcomes not yet folded included."""
        with self._lock:
            self._drain()
            return Copied(tuple(self._copy_counters()), tuple(self._copy_histograms()))

    def render(self, accept: str, snapshot: Snapshot) -> tuple[str, bytes]:
        """Return content type and text for a scrape. For a thread that is not the loop's."""
        # prometheus_client takes 70 ms to import, most of it for servers that are not used here:
        # the first scrape pays, in its own thread, not the start.
        from .render import render_text  # noqa: PLC0415 - see above

        return render_text(accept, self.copy(), snapshot)

    def _drain(self) -> None:
        take, fold = self._pending.popleft, self._fold_one
        for _ in range(len(self._pending)):
            fold(take())

    def _fold_one(self, o: Outcome) -> None:
        finish = o.finish
        key = (o.pool, o.endpoint, o.status, finish, o.route)
        cell = self._requests_by_name.get(key) or self._find_requests(key, o)
        cell.count += 1
        pool = cell.pool
        pool.received += o.bytes_in
        pool.sent += o.bytes_out
        received = o.received
        if o.placed is not None:
            pool.queue_wait.observe(max(0.0, o.placed - received))
            if o.attempts > 1:
                pool.retries += o.attempts - 1
        output = o.output_tokens
        if o.first_token is not None and o.stream:  # a whole answer shows neither
            pool.ttft.observe(max(0.0, o.first_token - received))
            if output and output > 1 and o.last_token is not None:
                pool.tpot.observe(max(0.0, o.last_token - o.first_token) / (output - 1))
        if finish is Finish.COMPLETED:
            pool.e2e.observe(max(0.0, o.ended - received))
        elif finish is Finish.LEFT:
            self._disconnects.add((cell.labels[0], phase(o)))
        if output is not None or o.prompt_tokens is not None:
            self._count_tokens(o)
        if o.sla or o.experiment:
            self._count_named(o, pool)
        if o.predicted_tokens and output and finish is Finish.COMPLETED:
            pool.prediction.observe(abs(o.predicted_tokens - output) / output)

    def _count_named(self, o: Outcome, pool: PoolCount) -> None:
        """Count what only requests of a class or of an experiment have."""
        if o.sla:
            self._count_goodput(o)
            self._count_wait(o, pool)
        if o.experiment:
            self._count_arm(o)

    def _count_arm(self, o: Outcome) -> None:
        arm = (o.experiment, o.arm)
        self._arm_requests.add((*arm, arm_result(o)))
        times = self._arms.get(arm)
        if times is None:
            times = self._arms[arm] = Histogram(TTFT_BOUNDS), Histogram(TPOT_BOUNDS)
        if o.first_token is None or not o.stream or o.moved:
            return
        times[0].observe(max(0.0, o.first_token - o.received))
        output = o.output_tokens
        if output and output > 1 and o.last_token is not None:
            times[1].observe(max(0.0, o.last_token - o.first_token) / (output - 1))

    def _count_wait(self, o: Outcome, pool: PoolCount) -> None:
        if o.placed is None or o.sla not in self._labels.targets:
            return
        waits = pool.classes.get(o.sla)
        if waits is None:
            waits = pool.classes[o.sla] = Histogram(QUEUE_BOUNDS)
        waits.observe(max(0.0, o.placed - o.received))

    def _count_goodput(self, o: Outcome) -> None:
        kept = met(o, self._labels.targets.get(o.sla))
        if kept:
            self._goodput.add((o.sla, kept))

    def _count_tokens(self, o: Outcome) -> None:
        key = (o.pool, o.tenant, o.model)
        cell = self._tokens_by_name.get(key) or self._find_tokens(key)
        cell.prompt += o.prompt_tokens or 0
        cell.cached += o.cached_tokens or 0
        cell.output += o.output_tokens or 0

    def _find_requests(self, key: tuple[object, ...], o: Outcome) -> RequestCount:
        pool = self._labels.pool(o.pool)
        endpoint = self._labels.endpoint(o.pool, o.endpoint)
        status, finish = status_label(o.status), finish_label(o.finish)
        labels: Labels = (pool, route_label(o.route), endpoint, status, finish)
        if labels not in self._requests and len(self._requests) >= MAX_SETS:
            labels = (OTHER,) * 5
        cell = self._requests.get(labels)
        if cell is None:
            cell = self._requests[labels] = RequestCount(labels, self._pools[labels[0]])
        if len(self._requests_by_name) < MAX_CACHED:
            self._requests_by_name[key] = cell
        return cell

    def _find_tokens(self, key: tuple[str, str, str]) -> TokenCount:
        pool, tenant, model = key
        known = self._labels
        labels: Labels = (known.pool(pool), known.tenant(tenant), known.model(pool, model))
        if labels not in self._tokens and len(self._tokens) >= MAX_SETS:
            labels = (OTHER,) * 3
        cell = self._tokens.setdefault(labels, TokenCount(labels))
        if len(self._tokens_by_name) < MAX_CACHED:
            self._tokens_by_name[key] = cell
        return cell

    def _forget_unknown(self, known: LabelSpace) -> None:
        names = catalog.REQUESTS.labels
        self._requests = {k: c for k, c in self._requests.items() if known.has(names, k)}
        names = catalog.PROMPT_TOKENS.labels
        self._tokens = {k: c for k, c in self._tokens.items() if known.has(names, k)}
        names = catalog.ARM_TTFT.labels
        self._arms = {k: times for k, times in self._arms.items() if known.has(names, k)}
        for counter in self._counters:
            names = counter.metric.labels
            counter.values = {k: n for k, n in counter.values.items() if known.has(names, k)}

    def _totals(self, name: str) -> PoolTotals:
        ended = [cell for labels, cell in self._requests.items() if labels[0] == name]
        tokens = [cell for labels, cell in self._tokens.items() if labels[0] == name]
        return PoolTotals(
            requests=sum(cell.count for cell in ended),
            failed=sum(cell.count for cell in ended if cell.labels[4] in FAILED),
            prompt_tokens=sum(cell.prompt for cell in tokens),
            cached_tokens=sum(cell.cached for cell in tokens),
            output_tokens=sum(cell.output for cell in tokens),
            ttft=self._pools[name].ttft.copy(),
            tpot=self._pools[name].tpot.copy(),
        )

    def _copy_counters(self) -> Iterator[tuple[Metric, Mapping[Labels, int]]]:
        yield catalog.REQUESTS, {k: cell.count for k, cell in self._requests.items()}
        tokens = self._tokens.items()
        yield catalog.PROMPT_TOKENS, {k: cell.prompt for k, cell in tokens}
        yield catalog.CACHED_TOKENS, {k: cell.cached for k, cell in tokens}
        yield catalog.OUTPUT_TOKENS, {k: cell.output for k, cell in tokens}
        yield catalog.RETRIES, self._of_pools(lambda pool: pool.retries)
        yield catalog.RECEIVED_BYTES, self._of_pools(lambda pool: pool.received)
        yield catalog.SENT_BYTES, self._of_pools(lambda pool: pool.sent)
        for counter in self._counters:
            yield counter.metric, dict(counter.values)

    def _of_pools(self, read: Callable[[PoolCount], int]) -> dict[Labels, int]:
        known = self._labels.pools
        values = {name: read(pool) for name, pool in self._pools.items()}
        return {(name,): n for name, n in values.items() if n or name in known}

    def _copy_histograms(self) -> Iterator[tuple[Metric, Mapping[Labels, HistogramCopy]]]:
        pools = [(name, pool) for name, pool in self._pools.items() if name in self._labels.pools]
        yield catalog.TTFT, {(name,): pool.ttft.copy() for name, pool in pools}
        yield catalog.TPOT, {(name,): pool.tpot.copy() for name, pool in pools}
        yield catalog.ITL, {(name,): pool.itl.copy() for name, pool in pools}
        yield catalog.E2E, {(name,): pool.e2e.copy() for name, pool in pools}
        yield catalog.QUEUE_WAIT, {(name,): pool.queue_wait.copy() for name, pool in pools}
        yield catalog.PREDICTION_ERROR, {(name,): pool.prediction.copy() for name, pool in pools}
        classes = [(name, sla, h) for name, pool in pools for sla, h in pool.classes.items()]
        yield catalog.CLASS_WAIT, {(name, sla): h.copy() for name, sla, h in classes}
        yield catalog.ARM_TTFT, {arm: times[0].copy() for arm, times in self._arms.items()}
        yield catalog.ARM_TPOT, {arm: times[1].copy() for arm, times in self._arms.items()}
        yield catalog.LOOP_PAUSE, {(): self.loop_pause.copy()}
