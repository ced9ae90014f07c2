"""What the engine model works on, sequences, and what it tells of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import abc


class Phase(IntEnum):
    """Where a sequence is."""

    NEW = 0
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    DONE = 4


class Sequence:
    """One prompt and its answer under way. Make it, `add` it, read it; the model writes it.

    `hashes` are the chained hashes of its full blocks, as far as anyone knows them: the prompt's,
    and then the answer's too when a later prompt may continue it. A lower `priority` goes first.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "hashes",
        "id",
        "made",
        "number",
        "output_tokens",
        "phase",
        "plain",
        "priority",
        "prompt_tokens",
        "since",
    )

    def __init__(
        self,
        id: object,  # noqa: A002 - what it is called everywhere else
        prompt_tokens: int,
        output_tokens: int,
        *,
        hashes: abc.Sequence[int] = (),
        priority: int = 0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.hashes = hashes
        self.priority = priority
        self.phase = Phase.NEW
        self.number = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache when it was first begun."""
        self.computed = 0
        self.made = 0
        self.since = 0
        self.plain = 0
        self.blocks: list[int] = []


class Stored(NamedTuple):
    """Blocks `first` up to (not with) `end` of a sequence entered the prefix cache."""

    sequence: Sequence
    first: int
    end: int


class Removed(NamedTuple):
    """One copy of a block left the prefix cache."""

    block_hash: int


@dataclass(slots=True)
class StepResult:
    """What one step did. Every sequence that decodes made `steps` tokens."""

    duration_s: float = 0.0
    steps: int = 0
    prefill_tokens: int = 0
    first: list[Sequence] = field(default_factory=list[Sequence])
    """Made their first token."""
    finished: list[Sequence] = field(default_factory=list[Sequence])
    preempted: list[Sequence] = field(default_factory=list[Sequence])
    events: list[Stored | Removed] = field(default_factory=list["Stored | Removed"])
    """Changes of the prefix cache in order, when the model was made with `events=True`."""
