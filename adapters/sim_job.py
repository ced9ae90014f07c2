"""What the embedded engine's parts share: what is asked of the model, its choices, and writers.

An *ask* is a prompt and its sampling, whatever route it came by. The engine makes *choices* of it,
each one sequence of the model. A *writer* turns choices into the route's bytes, streamed or whole.
A *job* is one call under way; a *reply* is an answer that needs no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.scheduler.engine_sequence import Sequence as ModelSequence

T = TypeVar("T")

FAULTS = (
    "refuse",
    "error503",
    "error500",
    "stall",
    "stall_after_first",
    "cut",
    "slow",
    "empty",
    "restart",
    "poison",
)


class SimError(Exception):
    """An error answer of the engine."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind or {404: "NotFoundError"}.get(status, "BadRequestError")
        self.param = param


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer that is there at once."""

    body: bytes
    status: int = 200
    content_type: bytes = b"application/json"


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    """Without its query."""
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header's value, its name in lower case."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


class SimMember(msgspec.Struct, forbid_unknown_fields=True):
    """The body field `sim`: fixes one answer."""

    output_tokens: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: object


@dataclass(slots=True, kw_only=True)
class Ask:
    """What is asked of the model, in no route's words."""

    prompts: list[list[int]]
    model: str
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int | None = None
    priority: int = 0
    salt: str = ""
    tools: list[Tool] = field(default_factory=list[Tool])
    """To be called now, in this order; empty for an answer in text."""
    schema: object = None
    """The answer is JSON that validates against this, when it is not None."""
    sim: SimMember | None = None
    reads_only: bool = False
    """The model reads the prompts and writes nothing."""


@dataclass(slots=True)
class Part:
    """A run of tokens of one choice: text, or one tool's arguments."""

    end: int
    tool: str | None = None
    call_id: str = ""


@dataclass(slots=True, eq=False)
class Choice:
    """One answer of the model, known whole from the start and told token by token."""

    index: int
    prompt: int
    """Which of the prompts it continues."""
    ids: list[int]
    pieces: list[str]
    quoted: Sequence[bytes] | None
    """The pieces as JSON, where they are at hand."""
    finish: str
    stop_reason: str | None = None
    parts: list[Part] = field(default_factory=list[Part])
    sequence: ModelSequence | None = None
    job: Job | None = None
    told: int = 0
    """Tokens that have gone out."""
    done: bool = False

    @property
    def text(self) -> str:
        """All of its text; without the arguments of tool calls."""
        if not self.parts:
            return "".join(self.pieces)
        return "".join(
            "".join(self.pieces[start:end]) for start, end, part in self.spans() if not part.tool
        )

    def spans(self) -> list[tuple[int, int, Part]]:
        """Return each part with its first token and its end."""
        start = 0
        found: list[tuple[int, int, Part]] = []
        for part in self.parts or [Part(len(self.pieces))]:
            found.append((start, part.end, part))
            start = part.end
        return found

    def quote(self, at: int) -> bytes:
        """Return one piece as JSON."""
        return self.quoted[at] if self.quoted else msgspec.json.encode(self.pieces[at])


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call used."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int

    @property
    def openai(self) -> dict[str, Any]:
        """As chat and completions tell it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Writer(Protocol):
    """Turns the choices of one job into the route's bytes."""

    stream: bool

    def head(self) -> bytes:
        """Begin a stream."""
        ...

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:
        """Tell tokens `first` up to `end` of a choice; with its last one, that it is finished."""
        ...

    def tail(self, usage: Usage) -> bytes:
        """End a stream."""
        ...

    def whole(self, usage: Usage) -> bytes:
        """Answer at once."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """One call under way."""

    choices: list[Choice]
    prompts: list[list[int]]
    """Token ids of each prompt."""
    writer: Writer = field(init=False)
    priority: int = 0
    salt: str = ""
    fault: str | None = None
    left: int = 0
    """Choices that are not done."""
    content_type: bytes = b"application/json"
    """Of the whole answer."""
    early: bytes | None = None
    """An answer that is given before the job is done, which goes on in the background."""
    on_end: Callable[[Usage], None] | None = None
    """Told when it has ended well: where answers are stored."""

    def usage(self) -> Usage:
        """Count what it has used so far."""
        seen: dict[int, int] = {}
        for choice in self.choices:
            if choice.sequence is not None:
                seen.setdefault(choice.prompt, choice.sequence.cached_tokens)
        output = sum(len(choice.ids) if choice.done else choice.told for choice in self.choices)
        return Usage(sum(map(len, self.prompts)), output, sum(seen.values()))


def read_body(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body; raises SimError as the engine would answer it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise SimError(str(error), kind="Bad Request") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _read_lenient(body, kind)


def _read_lenient(body: bytes, kind: type[T]) -> T:
    """Decode what only Python's own parser takes: lone surrogates and NaN."""
    import json  # noqa: PLC0415 - for the rare body alone

    try:
        return msgspec.convert(json.loads(body), type=kind)
    except msgspec.ValidationError as error:
        raise SimError(str(error), kind="Bad Request") from None
    except (ValueError, RecursionError):
        raise SimError("the body is no valid JSON", kind="Bad Request") from None


def error_body(error: SimError) -> bytes:
    """Render an error in vLLM's shape."""
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param,
                "code": error.status,
            }
        }
    )
