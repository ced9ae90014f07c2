"""How metrics are read from a snapshot.

A scope is what the gateway has one or many of, with the labels that tell them apart; the metrics
that are read of each follow in a table, and no other place needs to know of one. The tables are in
`readings_endpoints` and the like. What is counted as it happens is in `metrics` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from .labels import Labels
from .metric import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .snapshot import Snapshot

T = TypeVar("T")
Values = list[tuple[Labels, float]]
Read = Callable[[T], float | Iterable[tuple[Labels, float]] | None]
"""Gives a value, None where it is not known, or one for each value of labels of its own."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """One metric of a scope; `by` are the labels that it has besides the scope's."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    read: Read[T]
    by: Labels = ()

    def values(self, things: Iterable[tuple[Labels, T]]) -> Values:
        """Read all things' values."""
        found: Values = []
        for labels, thing in things:
            value = self.read(thing)
            if isinstance(value, int | float):
                found.append((labels, value))
            elif value is not None:
                found += [((*labels, *more), number) for more, number in value]
        return found


@dataclass(frozen=True, slots=True)
class Scope(Generic[T]):
    """What the gateway has one or many of, and what is read of each."""

    labels: Labels
    find: Callable[[Snapshot], Sequence[tuple[Labels, T]]]
    readings: tuple[Reading[T], ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of this scope."""
        return tuple(Metric(r.name, r.kind, self.labels + r.by, r.help) for r in self.readings)

    def read(self, snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
        """Read all metrics of this scope."""
        things = self.find(snapshot)
        for metric, reading in zip(self.metrics, self.readings, strict=True):
            yield metric, reading.values(things)


def counter(name: str, text: str, read: Read[T], by: Labels = ()) -> Reading[T]:
    """Return the reading of a counter."""
    return Reading("counter", name, text, read, by)


def gauge(name: str, text: str, read: Read[T], by: Labels = ()) -> Reading[T]:
    """Return the reading of a gauge."""
    return Reading("gauge", name, text, read, by)


def named(numbers: Iterable[tuple[str, float]]) -> Values:
    """Return a value for each name."""
    return [((name,), number) for name, number in numbers]


def one_of(states: Iterable[str], state: str) -> Values:
    """Return 1 for the state it is in, and 0 for the others."""
    return [((each,), float(each == state)) for each in states]
