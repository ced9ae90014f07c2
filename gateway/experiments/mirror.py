"""What other replicas have counted of one experiment, kept here and read again where it changed.

Each replica writes counts under its own name, and beside each a stamp that it never gives twice. So
one look at all stamps, some bytes for each, says which counts have to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.tallies import Tallies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .store import Rows

    Counts = Rows | dict[str, ShadowTally]

SHADOW = "shadow"
"""What copies showed; every other part is a stage's counts."""

Part = tuple[str, str]
"""What it is of (a stage, or SHADOW), and the replica that counted."""


class _Held(NamedTuple):
    stamp: bytes
    counts: Counts


class Mirror:
    """The parts that are known, and their sums."""

    def __init__(self) -> None:
        self.stages: dict[str, Rows] = {}
        """The others' counts by stage; a stage's list is another one only where they changed."""
        self.shadow: dict[str, ShadowTally] = {}
        self._held: dict[Part, _Held] = {}

    def outdated(self, stamps: Mapping[Part, bytes]) -> list[Part]:
        """Return the parts that have to be read, of those that there are."""
        held = self._held
        return [p for p, stamp in stamps.items() if p not in held or held[p].stamp != stamp]

    def update(self, stamps: Mapping[Part, bytes], read: Mapping[Part, Counts]) -> None:
        """Take what was read, and forget what is no longer there."""
        gone = self._held.keys() - stamps.keys()
        for part in gone:
            del self._held[part]
        for part, counts in read.items():
            self._held[part] = _Held(stamps[part], counts)
        for what in {what for what, _ in (*gone, *read)}:
            self._sum(what, [held.counts for part, held in self._held.items() if part[0] == what])

    def _sum(self, what: str, parts: Iterable[Counts]) -> None:
        if what == SHADOW:
            self.shadow = _together(each for each in parts if isinstance(each, dict))
            return
        whole = Tallies()
        for rows in parts:
            if isinstance(rows, list):
                whole.merge(Tallies.from_rows(rows))
        self.stages[what] = whole.as_rows()


def _together(copies: Iterable[dict[str, ShadowTally]]) -> dict[str, ShadowTally]:
    whole: dict[str, ShadowTally] = {}
    for tallies in copies:
        for bucket, tally in tallies.items():
            whole.setdefault(bucket, ShadowTally()).merge(tally)
    return whole
