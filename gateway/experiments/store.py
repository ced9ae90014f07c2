"""Where the state of experiments is kept, and which replica decides.

Counts are kept by run and stage, so that a test begins anew with each; replicas write their own
sums and read everybody's. A decision counts only on the version it was made on.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from forebay.policies.experiments.answers import ShadowTally  # noqa: TC001 - msgspec reads it
from forebay.policies.experiments.ramp import State
from forebay.policies.experiments.tallies import Tally

Rows = list[tuple[str, str, int, Tally]]


class Kept(msgspec.Struct):
    """All of one experiment that outlives a process."""

    state: State = State()
    stages: dict[str, Rows] = {}
    """Counts by `RUN.STAGE`; a Struct copies the default."""
    shadow: dict[str, ShadowTally] = {}
    """What copies showed, by bucket."""


class ExperimentsAway(Exception):  # noqa: N818 - the words of the house, not a suffix
    """The store cannot be reached."""


class ExperimentsHeld(ExperimentsAway):
    """Another process keeps its experiments there, and is not to be written over."""


class Store(Protocol):
    """Keeps experiments. Any of these may raise ExperimentsAway."""

    shared: bool
    """Other replicas write to it as well."""

    async def load(self, name: str) -> Kept | None:
        """Return what is kept of an experiment; of a shared one, the counts of all others."""
        ...

    async def save(self, name: str, kept: Kept) -> None:
        """Write this replica's counts; where it is not shared, the state as well."""
        ...

    async def decide(self, name: str, state: State) -> bool:
        """Write a state whose version is one more than the one kept; False when it is not."""
        ...

    async def leads(self) -> bool:
        """Whether this replica is the one that decides."""
        ...

    async def close(self) -> None:
        """Let go of what is open."""
        ...


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Kept).decode


def stage_key(state: State) -> str:
    """Name what is counted now: a stage, or what comes after the end."""
    over = state.phase in {"rolled_back", "promoted"}
    return f"{state.run}.end" if over else tested_key(state)


def tested_key(state: State) -> str:
    """Name the counts that the last test was made on."""
    return f"{state.run}.{state.stage}"


class Nowhere:
    """Keeps nothing: an experiment begins anew with the process."""

    shared = False

    async def load(self, name: str) -> Kept | None:  # noqa: ARG002 - the protocol's signature
        """See Store."""
        return None

    async def save(self, name: str, kept: Kept) -> None:
        """See Store."""

    async def decide(self, name: str, state: State) -> bool:  # noqa: ARG002 - likewise
        """See Store."""
        return True

    async def leads(self) -> bool:
        """See Store."""
        return True

    async def close(self) -> None:
        """See Store."""
