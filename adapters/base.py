"""What an adapter is, and the seam that an engine's answer comes through.

Five words: a *call* is the caller's request as an adapter sees it; its *translation* is what is
sent on; an *opener* sends it and hands back a *stream*; the answer is pushed into a *sink*. The
connections to real engines (`connections`) and the embedded engine (`sim`) are both openers, so
nothing above can tell them apart.

Pushing, not `async for`: one wake-up of a task costs 2-3 us a chunk, which is most of the budget of
a relayed chunk, and a callback can be settled synchronously when the caller leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct

from forebay.policies.contracts import Word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx
    import msgspec

    from forebay.policies.contracts import EngineFailed, Route

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order they came."""


class Sink(Protocol):
    """Takes one answer. Calls come in this order: head, data*, then end or failure, once."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Take the status line and headers."""
        ...

    def on_data(self, data: bytes) -> None:
        """Take more of the body."""
        ...

    def on_end(self) -> None:
        """Take note that the answer is whole."""
        ...

    def on_failure(self, error: EngineFailed) -> None:
        """Take note that it will not be; `EngineUnreachable`: the request was never sent."""
        ...


class Stream(Protocol):
    """One answer under way. After `close` nothing more is pushed."""

    sent: bool
    """The whole request has gone out, so the engine may have begun on it."""

    def pause(self) -> None:
        """Stop reading: the caller is slow."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def close(self) -> None:
        """Give up: the engine sees its caller leave. Harmless after the end."""
        ...


class Opener(Protocol):
    """Sends requests to one endpoint."""

    def open(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, sink: Sink
    ) -> Stream:
        """Send one request. Never raises: what goes wrong goes to `sink.on_failure`.

        `headers` are complete but for host, content-length and the endpoint's own key. The sink is
        never called before `open` has returned.
        """
        ...

    def close(self) -> None:
        """Close idle connections; answers under way go on."""
        ...


class Call(Struct, gc=False):
    """What an adapter may look at to translate a caller's request."""

    request_id: str
    """Our own, 32 hexadecimal digits: fixed length and unguessable (SGLang aborts by prefix)."""
    route: Route
    method: str
    path: str
    """The caller's path with query: `/v1/responses/resp_1` has route RESPONSES."""
    model: str
    """The engine's name for the model; empty when the body names none."""
    members: Mapping[str, msgspec.Raw]
    """Top-level members of the JSON body, undecoded; empty when the body is no JSON object."""
    stream: bool = False
    meter_usage: bool = False
    """Ask for usage in the stream although the caller did not."""
    allow: frozenset[str] = frozenset()
    """Control fields that the pool opted back in."""
    priority: int | None = None
    """0 is normal, lower is more urgent; the adapter turns the sign. None: send nothing."""
    cache_salt: str | None = None


class Translation(Struct):
    """What is sent on: the caller's body with these members edited, the rest byte for byte."""

    path: str
    set: dict[str, bytes] = {}  # a Struct copies it for each
    """Top-level members to replace or append, as raw JSON."""
    drop: tuple[str, ...] = ()
    """Top-level members to remove."""
    headers: tuple[tuple[str, str], ...] = ()
    answer: Callable[[bytes], bytes] | None = None
    """Rewrites a whole (never streamed) 200 answer where an engine's shape is not the route's."""


class Verdict(Word):
    """What an answer's status says about its endpoint (not about the caller's luck)."""

    GOOD = "good"
    NEUTRAL = "neutral"
    """The caller's own fault: 400, 413, 422. Passed on, and no sign of ill health."""
    MISSING_ROUTE = "missing_route"
    """404, 405, 501 for the path itself: this endpoint does not have the route."""
    MISCONFIGURED = "misconfigured"
    """401, 403, unknown model: our configuration is wrong; out of rotation until a probe passes."""
    FULL = "full"
    """408, 429, 503: try another; no breaker failure, unless 503 is all that it says."""
    BROKEN = "broken"
    """500, 502, 504 and whatever cannot be read: counts against the breaker."""


@dataclass(frozen=True, slots=True)
class EngineError:
    """An engine's error body, read once, whatever its shape."""

    verdict: Verdict
    message: str
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    nested: bool = True
    """The body already has OpenAI's `{"error": {...}}` shape and may be passed on as it is."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model that an endpoint serves."""

    name: str
    max_model_len: int | None = None
    parent: str | None = None
    """The base model, when this is a LoRA adapter."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What an endpoint says it is. None is 'it does not say', never zero."""

    engine: str
    version: str | None = None
    models: tuple[ModelCard, ...] = ()
    limit: int | None = None
    """Requests it can run at once."""
    routes: frozenset[Route] | None = None
    started: float | None = None
    """The engine's process start time, in Unix seconds: a change is a restart."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, of all ranks."""
    generated: float | None = None
    """A counter that only goes up while the process lives: one that went back is a restart."""
    adapters: int | None = None
    """LoRA adapters that it can run at once."""
    running_adapters: tuple[str, ...] = ()
    """Those that it is running, or will next; by the names that requests ask for."""
    any_model: bool = False
    """It takes any model name and serves its own, so `models` is to show, not to filter by."""


@dataclass(frozen=True, slots=True)
class Load:
    """An endpoint's load as it reports it. None is 'unknown', never zero."""

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an endpoint is, for control calls."""

    name: str
    url: str
    """Without a trailing slash."""
    key: str | None = field(default=None, repr=False)
    """The endpoint's own API key, sent as a bearer token."""

    @property
    def headers(self) -> dict[str, str]:
        """Authorization, where there is a key."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}


class Adapter(Protocol):
    """How one kind of engine speaks. Holds no state of an endpoint; one instance serves all."""

    engine: ClassVar[str]
    control_fields: ClassVar[frozenset[str]]
    """Top-level body members that steer the engine: taken out of callers' requests."""
    control_headers: ClassVar[frozenset[str]]
    """Headers that steer the engine (lower case). None ever goes up: the allow-list decides; the
    table is what the tests send."""
    keep_alive_s: ClassVar[float]
    """After this long idle the engine may close a connection."""
    wants_abort: ClassVar[bool]
    """It may not see its caller leave, so that `abort` has to be called besides."""

    def translate(self, call: Call) -> Translation:
        """Turn a call into what this engine takes.

        Raises InvalidRequest (status 404) for a route that this kind of engine never has.
        """
        ...

    def read_error(self, status: int, body: bytes) -> EngineError:
        """Read an error answer of any shape that this engine sends; never raises."""
        ...

    async def probe(self, http: httpx.AsyncClient, target: Target) -> Probe:
        """Ask an endpoint what it is.

        Raises EngineUnreachable when nothing answers, EngineRefused (with its `status`) when it
        answers but is not ready or will not talk to us.
        """
        ...

    async def read_load(self, http: httpx.AsyncClient, target: Target) -> Load:
        """Ask an endpoint how busy it is. Raises as `probe` does."""
        ...

    async def abort(self, http: httpx.AsyncClient, target: Target, request_id: str) -> None:
        """Tell the engine to stop, where closing the connection is not enough. Never raises."""
        ...
