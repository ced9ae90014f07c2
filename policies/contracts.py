"""Shared nouns, and the protocols that policies implement.

The tree of `errors` is had from here too, so that whoever keeps a protocol imports one module.

What is made once a request is a msgspec Struct: a frozen dataclass of as many fields takes 2 us to
make, a Struct 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import force_setattr

from .errors import (
    ConfigError,
    DeadlineExpired,
    EngineFailed,
    EngineRefused,
    EngineUnreachable,
    Forbidden,
    ForebayError,
    InvalidRequest,
    NotSent,
    Overloaded,
    QuotaExceeded,
    Rejected,
    Unauthorized,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from forebay.prefixcache.blocks import BlockHash

__all__ = [
    "Charged",
    "ConfigError",
    "DeadlineExpired",
    "EndpointView",
    "EngineFailed",
    "EngineRefused",
    "EngineUnreachable",
    "Filter",
    "Finish",
    "Forbidden",
    "ForebayError",
    "Foretelling",
    "InvalidRequest",
    "NotSent",
    "Ordering",
    "Outcome",
    "Overloaded",
    "Pick",
    "Placement",
    "QuotaExceeded",
    "Rejected",
    "Request",
    "Route",
    "Score",
    "Shape",
    "Unauthorized",
    "Word",
]


class Word(StrEnum):
    """An enum of strings that hashes as fast as they do: Enum's own hash is written in Python."""

    __hash__ = str.__hash__


class Route(Word):
    """A path of the data plane; the value is the path that callers use."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    RERANK = "/v1/rerank"
    SCORE = "/v1/score"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"


Shape = str
"""What two requests have in common that can go to the same places; see `Request.shape`."""


@lru_cache(maxsize=4096)
def _shape_of(*parts: object) -> Shape:
    """Write a shape's parts as one string: unlike a tuple it is hashed once and not each time."""
    return repr([sorted(part) if isinstance(part, frozenset) else part for part in parts])  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - of names


class Request(Struct, frozen=True, gc=False):
    """One call going down, as the scheduler sees it.

    Times are in the loop's seconds, `arrived` and `deadline` included. Token counts are estimates
    until an engine has answered.
    """

    id: str
    pool: str
    route: Route
    model: str
    tenant: str
    sequence: int
    arrived: float
    deadline: float
    prompt_tokens_estimate: int
    output_tokens_estimate: int
    uncached_tokens: int
    body_bytes: int = 0
    media: int = 0
    """Pictures, sounds and files in it."""
    media_tokens: int = 0
    """Of the prompt's tokens, what these are thought to be."""
    stream: bool = False
    session: str | None = None
    blocks: tuple[BlockHash, ...] = ()
    """The prompt's chain of block hashes; empty where its pool does not look at prefixes."""
    counted: bool = False
    """`prompt_tokens_estimate` is a count of the model's own tokens."""
    endpoint: str | None = None
    """The only endpoint that can serve it (a stored response lives on one), or None."""
    avoid: frozenset[str] = frozenset()
    """Endpoints already tried."""
    without: frozenset[str] = frozenset()
    """Endpoints that an experiment keeps it from."""
    weight: float = 1.0
    """Its tenant's share against the others': cost is divided by it."""
    sla: str = ""
    """The SLA class by name; empty where there are none."""
    sla_rank: int = 0
    """How much the class matters: a higher one may displace and recall a lower one's requests."""
    longest_wait: float | None = None
    """Seconds in the queue after which it is overdue; None: what the pool says."""
    reserve: str = ""
    """Whose places of the pool its tenant may draw on; empty: everybody's."""
    queue_share: float | None = None
    """Of the queue's places, what its tenant may take; None: all."""
    speculates: bool = True
    """Drafts pay for it, where its pool has endpoints that speculate."""
    kind: str = ""
    """What it is like, where its pool measures by kind; a handful of names."""

    shape: Shape = ""
    """What decides which places it may have: requests of one shape are interchangeable. Made of the
    others when it is made, since it is looked at a dozen times while it waits."""

    def __post_init__(self) -> None:
        shape = _shape_of(
            self.route, self.model, self.endpoint, self.avoid, self.reserve, self.without
        )
        force_setattr(self, "shape", shape)


class Finish(Word):
    """How a call ended, for metrics and logs."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    ENGINE_ERROR = "engine_error"
    TRUNCATED = "truncated"
    """The engine broke off after bytes had gone to the caller."""
    LEFT = "left"
    """The caller went away first."""
    TIMEOUT = "timeout"
    DRAINED = "drained"


class Outcome(Struct, gc=False):
    """How one call ended: written once, when it is settled.

    Times in loop seconds; None means that the moment never came. Token counts are None when the
    engine told none.
    """

    request_id: str
    """The caller's where it was well-formed, as its answer says; else ours."""
    pool: str
    route: str
    tenant: str
    model: str = ""
    endpoint: str = ""
    status: int = 0
    finish: Finish = Finish.COMPLETED
    stream: bool = False
    error: str = ""
    attempts: int = 0
    received: float = 0.0
    placed: float | None = None
    first_byte: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    events: int = 0
    """Events of a streamed answer that have passed: about as many as output tokens."""
    bytes_in: int = 0
    bytes_out: int = 0
    trace: str = ""
    """The W3C traceparent that was passed on, or empty."""
    sla: str = ""
    predicted_tokens: int = 0
    """Output tokens that were predicted for it."""
    experiment: str = ""
    """The experiment that it takes part in, and the arm that it was given there."""
    arm: str = ""
    empty: bool = False
    """The answer was whole, and there was nothing in it."""
    moved: str = ""
    """Why it went to another arm or pool than was meant for it; empty when it did not."""
    engine_id: str = ""
    """Our id, which engines are told, where `request_id` is the caller's."""


@dataclass(slots=True)
class EndpointView:
    """What policies may know of an endpoint. The dispatcher writes it, policies only read.

    `running`, `waiting` and `kv_use` are what the engine last said, None while unknown: an unknown
    load is never read as an idle engine.
    """

    name: str
    engine: str
    limit: int
    usable: bool = True
    """In rotation: probes succeed, breaker closed, configuration right."""
    share: float = 1.0
    """Of `limit`: below 1 while the endpoint returns slowly, or tries itself half-open."""
    models: frozenset[str] = frozenset()
    """Engine model names; empty means that any name is taken."""
    routes: frozenset[Route] | None = None
    """Routes it has; None while not yet known, which counts as all."""
    in_flight: int = 0
    in_flight_tokens: int = 0
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    load_at: float | None = None
    speculates: bool | None = None
    """Whether it speculates and that pays; None: it does not speculate."""

    @property
    def room(self) -> int:
        """How many more requests it may take now."""
        if not self.usable:
            return 0
        return max(1, int(self.limit * self.share)) - self.in_flight


class Placement(Struct, frozen=True, gc=False):
    """The endpoint chosen for a request."""

    request: Request
    endpoint: str
    tokens: int
    """The predicted load that it adds: uncached prompt and output tokens."""
    placed: float
    score: float = 0.0
    cost: float = 0.0
    """What the ordering was charged for it."""


class Ordering(Protocol):
    """Holds the waiting requests of one pool and says who goes next."""

    name: str

    def __len__(self) -> int: ...

    def add(self, request: Request, now: float) -> None:
        """Take a request into the queue; its `sequence` keeps its place when it comes back."""
        ...

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        ...

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:
        """Remove and return the first request that `fits`; None when none does.

        `fits` answers alike for all requests of one shape, so an implementation asks once a shape.
        """
        ...


@runtime_checkable
class Charged(Protocol):
    """What an ordering keeps beside `Ordering` when it shares out cost: all placements are told.

    Also those that never waited. `next` itself charges nothing.
    """

    def started(self, request: Request, cost: float, now: float) -> None:
        """Charge the predicted cost of a request that is placed now."""
        ...

    def settled(self, request: Request, charged: float, cost: float) -> None:
        """Correct a charge to the true cost; 0 takes it back."""
        ...


@runtime_checkable
class Foretelling(Protocol):
    """What an ordering keeps beside `Ordering` when not all that wait go before a new request.

    Without it a request is refused as soon as all that wait would take longer than it may wait,
    unless `by_size = True` says that this tells nothing.
    """

    def ahead(self, request: Request) -> float:
        """Return about how many would go before it if it came now."""
        ...


class Filter(Protocol):
    """Keeps the endpoints that may serve a request.

    An attribute `stable = True` promises that the answer depends on the request's shape and on the
    views' `name`, `usable`, `models` and `routes` only: it is then remembered for each shape until
    one of those changes. Without it the filter is asked for every placement.
    """

    name: str

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[EndpointView]:
        """Return those that may serve it, in the order given."""
        ...


class Score(Protocol):
    """Rates endpoints for one request, 0 (worst) to 1 (best)."""

    name: str

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Return one rating for each endpoint."""
        ...


class Pick(Protocol):
    """Chooses one of the scored endpoints; `rng` spreads ties."""

    name: str

    def __call__(
        self, endpoints: Sequence[EndpointView], scores: Sequence[float], rng: Random
    ) -> int:
        """Return the index of the one chosen."""
        ...
