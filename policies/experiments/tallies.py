"""What an arm's requests did, as counts that add up: over time, over replicas, over restarts.

A tally holds one arm's requests of one cell. Times and lengths are kept as counts of logarithmic
buckets 2 % wide, so a quantile is known to within 2 %, and two tallies are merged by adding.
"""

from __future__ import annotations

from math import exp, floor, log
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDTH = log(1.02)
_LEAST = 1e-4
"""What is less counts as this: among queue waits of microseconds there is nothing to compare."""
BUCKETS = (512, 2048, 8192)
"""Prompt tokens up to which a prompt is of each bucket; the last bucket has no end."""
BUCKET_NAMES = ("to-512", "to-2048", "to-8192", "longer")
TIMED = ("ttft", "tpot", "e2e", "queue", "length")
"""What is kept as a distribution; seconds, but for `length`: output tokens."""


def steps(logarithm: float) -> int:
    """Return how many buckets wide a factor is, which is given as its logarithm."""
    return round(logarithm / _WIDTH)


def bucket_of(prompt_tokens: int) -> int:
    """Return the index of a prompt's bucket."""
    for index, most in enumerate(BUCKETS):
        if prompt_tokens <= most:
            return index
    return len(BUCKETS)


class Cell(Struct, frozen=True, order=True):
    """Requests that can be compared: one SLA class, one bucket of prompt lengths."""

    sla: str = ""
    bucket: int = 0


class Sketch(Struct, gc=False):
    """A distribution: how many values fell into each bucket, and the moments of their logarithm."""

    count: int = 0
    total: float = 0.0
    """Of the values themselves."""
    log_total: float = 0.0
    log_squares: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, value: float, times: int = 1) -> None:
        """Count a value; what is 0 or less counts as the least there is."""
        logarithm = log(max(value, _LEAST))
        bucket = floor(logarithm / _WIDTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.count += times
        self.total += value * times
        self.log_total += logarithm * times
        self.log_squares += logarithm * logarithm * times

    def merge(self, other: Sketch, shift: int = 0) -> None:
        """Add another's counts, of values that are made larger by `shift` buckets' widths."""
        moved, count = shift * _WIDTH, other.count
        self.count += count
        self.total += other.total * exp(moved)
        self.log_total += other.log_total + moved * count
        self.log_squares += other.log_squares + moved * (2 * other.log_total + moved * count)
        buckets = self.buckets
        for bucket, times in other.buckets.items():
            buckets[bucket + shift] = buckets.get(bucket + shift, 0) + times

    @property
    def mean(self) -> float:
        """The mean of the values; 0 without any."""
        return self.total / self.count if self.count else 0.0

    @property
    def log_mean(self) -> float:
        """The mean of the values' logarithms."""
        return self.log_total / self.count

    @property
    def log_deviations(self) -> float:
        """The sum of squared deviations of the logarithms from their mean."""
        return max(0.0, self.log_squares - self.log_total * self.log_total / self.count)

    def between(self, low: int, high: int) -> tuple[float, float]:
        """Return a lower bound of the value of rank `low` and an upper one of rank `high`.

        Ranks count from 1; a rank outside of what there is bounds nothing: 0 or infinity.
        """
        least, most, seen = 0.0, float("inf"), 0
        for bucket in sorted(self.buckets):
            before, seen = seen, seen + self.buckets[bucket]
            if before < low <= seen:
                least = exp(bucket * _WIDTH)
            if before < high <= seen:
                return least, exp((bucket + 1) * _WIDTH)
        return least, most

    def quantile(self, share: float) -> float:
        """Return a quantile, the middle of its bucket; 0 without values."""
        if not self.count:
            return 0.0
        rank = min(self.count, max(1, round(share * self.count + 0.5)))
        low, high = self.between(rank, rank)
        return (low * high) ** 0.5


class Observation(Struct, frozen=True):
    """What one request says of its arm. A time that never came, or says nothing, is None."""

    arm: str
    cell: Cell
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    queue: float | None = None
    length: float | None = None
    errors: bool = False
    refused: bool = False
    """The engine found the request itself wrong."""
    left: bool = False
    """Its caller left before the first byte."""
    empty: bool = False
    truncated: bool = False
    repeated: bool = False
    broken_json: bool = False
    good: bool | None = None
    """None: its class has no targets."""
    judged: bool = False
    """Its text was looked at, so `repeated` and `broken_json` say something."""
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cold: bool = False
    """Within the time after a start that is left out: only its errors count."""


class Tally(Struct):
    """One arm's requests of one cell."""

    requests: int = 0
    answered: int = 0
    """Of those, whole answers: what `empty` and `truncated` are shares of."""
    errors: int = 0
    refused: int = 0
    left: int = 0
    empty: int = 0
    truncated: int = 0
    repeated: int = 0
    broken_json: int = 0
    judged: int = 0
    good: int = 0
    promised: int = 0
    """Requests of a class that has targets."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: dict[str, int] = field(default_factory=dict[str, int])
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)
    e2e: Sketch = field(default_factory=Sketch)
    queue: Sketch = field(default_factory=Sketch)
    length: Sketch = field(default_factory=Sketch)

    def add(self, seen: Observation) -> None:
        """Count one request."""
        self.requests += 1
        self.errors += seen.errors
        self.refused += seen.refused
        self.left += seen.left
        if seen.errors:
            self._promise(seen)
        if seen.errors or seen.refused or seen.left or seen.cold:
            return
        self.answered += 1
        self.empty += seen.empty
        self.truncated += seen.truncated
        self.judged += seen.judged
        self.repeated += seen.repeated
        self.broken_json += seen.broken_json
        self._promise(seen)
        self._count_tokens(seen)
        for name in TIMED:
            value = getattr(seen, name)
            if value is not None:
                getattr(self, name).add(value)

    def _promise(self, seen: Observation) -> None:
        if seen.good is not None:
            self.promised += 1
            self.good += seen.good

    def _count_tokens(self, seen: Observation) -> None:
        self.prompt_tokens += seen.prompt_tokens
        self.cached_tokens += seen.cached_tokens
        self.output_tokens += seen.output_tokens
        if seen.finish_reason:
            reasons = self.finish_reasons
            reasons[seen.finish_reason] = reasons.get(seen.finish_reason, 0) + 1

    def merge(self, other: Tally) -> None:
        """Add another's counts."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Sketch):
                mine.merge(theirs)
            elif isinstance(mine, dict):
                _add_up(mine, theirs)  # type: ignore[reportUnknownArgumentType]  # finish reasons
            else:
                setattr(self, name, mine + theirs)


def _add_up(mine: dict[str, int], theirs: dict[str, int]) -> None:
    for name, times in theirs.items():
        mine[name] = mine.get(name, 0) + times


class Tallies:
    """The tallies of one experiment, by arm and cell."""

    def __init__(self) -> None:
        self.arms: dict[str, dict[Cell, Tally]] = {}

    def add(self, seen: Observation) -> None:
        """Count one request."""
        self.of(seen.arm, seen.cell).add(seen)

    def of(self, arm: str, cell: Cell) -> Tally:
        """Return the tally of an arm's cell, empty if there was none."""
        cells = self.arms.setdefault(arm, {})
        tally = cells.get(cell)
        if tally is None:
            tally = cells[cell] = Tally()
        return tally

    def cells(self, arm: str) -> dict[Cell, Tally]:
        """Return an arm's tallies."""
        return self.arms.get(arm, {})

    def whole(self, arm: str, cells: Iterable[Cell] | None = None) -> Tally:
        """Return an arm's tallies of all or some cells added up; a copy."""
        whole, own = Tally(), self.cells(arm)
        for cell in own if cells is None else cells:
            if cell in own:
                whole.merge(own[cell])
        return whole

    def requests(self, arm: str) -> int:
        """Return how many requests an arm has had."""
        return sum(tally.requests for tally in self.cells(arm).values())

    def merge(self, other: Tallies) -> None:
        """Add another's counts."""
        for arm, cells in other.arms.items():
            for cell, tally in cells.items():
                self.of(arm, cell).merge(tally)

    def as_rows(self) -> list[tuple[str, str, int, Tally]]:
        """Return all of it as plain rows: arm, SLA class, bucket, tally."""
        return [
            (arm, cell.sla, cell.bucket, tally)
            for arm, cells in sorted(self.arms.items())
            for cell, tally in sorted(cells.items())
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, str, int, Any]]) -> Tallies:
        """Make tallies of such rows."""
        made = cls()
        for arm, sla, bucket, tally in rows:
            made.of(arm, Cell(sla, bucket)).merge(tally)
        return made
