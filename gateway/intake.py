"""What a body says of a call: which pool and model, how large, whether streamed; and `Inbound`.

`preparation` puts it together. All pure: whatever can be wrong with a request is found here, before
it costs anybody anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.adapters.registry import CONTROL_FIELDS
from forebay.policies.contracts import Forbidden, InvalidRequest, Outcome, Route

from . import multipart, wire

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from forebay.adapters.base import Call
    from forebay.gateway.config.sections import Tenant, Timeouts
    from forebay.policies.contracts import Request

    from .copies import Copy
    from .messages import Message
    from .places import Place
    from .pools import Pool
    from .telemetry.traces import RequestTrace
    from .trials import Assigned

AnyBody = wire.Body | multipart.Form

READ_OR_WRITTEN = CONTROL_FIELDS | frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "n_predict",
        "best_of",
        "previous_response_id",
        "prompt",
        "response_format",
    }
)
"""Members whose repetition would leave open what was meant."""
USAGE_ROUTES = frozenset({Route.CHAT, Route.COMPLETIONS})
"""Routes that tell usage in a stream only when asked."""
_MOST_ANSWERS = 1024
_HOTTEST = 100.0
"""Engines refuse more than a temperature of 2; a caller may write any number."""
BYTES_PER_TOKEN = 4
"""Rough, and of the whole body but what is no text (`media`)."""
_COUNTED = 64 << 10
"""Bytes of prompts up to which they are counted exactly; of longer ones, by their brackets."""


class Inbound:
    """A call that has been read and found well-formed."""

    __slots__ = (
        "accept",
        "body",
        "bound",
        "call",
        "content_type",
        "copy",
        "guarded",
        "model",
        "places",
        "pool",
        "request",
        "salt",
        "shown_id",
        "strip_usage",
        "tenant",
        "timeouts",
        "trace",
        "tracestate",
        "trial",
    )

    def __init__(self, pool: Pool, tenant: Tenant, body: AnyBody, call: Call) -> None:
        self.pool = pool
        self.tenant = tenant
        self.body = body
        self.call = call
        self.content_type = "application/json"
        self.strip_usage = False
        """Only forebay asked for usage: its event is not the caller's."""
        self.model = ""
        """The caller's name for the model."""
        self.shown_id = ""
        """The id that the caller sees: its own where that is well-formed."""
        self.accept = "*/*"
        self.tracestate: bytes | None = None
        self.bound: dict[str, bytes] | None = None
        """Members to set, so that the answer is no longer than the tenant may have."""
        self.timeouts: Timeouts | None = None
        """Its SLA class's, where they are not the pool's."""
        self.trial: Assigned | None = None
        """Its part in an experiment."""
        self.copy: Copy | None = None
        """What of it and its answer is kept, to be looked at after it has ended."""
        self.guarded = False
        """A bad answer would go on elsewhere, so nothing is sent before its first token."""
        self.places: tuple[Place, ...] = ()
        """Where it may go, one after the other, when its pool cannot serve it."""
        self.salt: bytes | None = None
        """Of its prefixes, where the prompt has yet to be cut into tokens."""
        self.trace: RequestTrace
        self.request: Request

    def forget_body(self) -> None:
        """Let go of the caller's body: it will not be sent again."""
        self.body, self.call.members = wire.EMPTY, {}

    def headers(self, extra: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        """Return what goes upstream, by allow-list; `extra` is the adapter's."""
        headers = [("accept", self.accept), ("accept-encoding", "identity"), *extra]
        if self.call.method == "POST" and self.body.raw:
            headers.append(("content-type", self.content_type))
        if self.trace.traceparent:
            headers.append(("traceparent", self.trace.traceparent))
            if self.tracestate:
                headers.append(("tracestate", self.tracestate.decode("latin-1")))
        return headers


def read_body(message: Message, route: Route) -> AnyBody:
    """Read a message's body in the shape its route takes."""
    content_type = message.headers.get(b"content-type", b"application/json")
    if route is Route.TRANSCRIPTIONS:
        if not content_type.lower().startswith(b"multipart/form-data"):
            raise InvalidRequest("send the audio as multipart/form-data", status=415)
        return multipart.read(message.body, content_type, READ_OR_WRITTEN)
    if content_type.lower().startswith(b"multipart/"):
        raise InvalidRequest("send the body as application/json", status=415)
    return wire.read(message.body, READ_OR_WRITTEN)


def model_of(body: AnyBody) -> str | None:
    """Return the model that a body names; None when it names none."""
    model = body.get("model")
    if model is None or (isinstance(model, str) and model):
        return model
    raise InvalidRequest("'model' must be a non-empty string", param="model")


def choose_pool(model: str | None, models: Mapping[str, Pool], tenant: Tenant) -> tuple[Pool, str]:
    """Return the pool for a model and the caller's name for it.

    Without a name it is the only pool that the tenant may use, by the first model it may.
    """
    permitted = tenant.limits.models
    if model is None:
        allowed = [name for name in models if permitted is None or name in permitted]
        pools = {models[name].name for name in allowed}
        if len(pools) != 1:
            raise InvalidRequest("name a 'model'; GET /v1/models lists them", param="model")
        return models[allowed[0]], allowed[0]
    if permitted is not None and model not in permitted:
        text = f"this key may not use the model '{shown(model)}'"
        raise Forbidden(text, code="model_not_allowed", param="model")
    pool = models.get(model)
    if pool is None:
        raise InvalidRequest(
            f"there is no model '{shown(model)}'; GET /v1/models lists them",
            status=404,
            code="model_not_found",
            param="model",
        )
    return pool, model


def shown(text: str) -> str:
    """Cut and escape a caller's own word for the error that this caller gets."""
    return text[:64].encode("unicode_escape").decode("ascii")


def read_stream_flag(body: AnyBody) -> bool:
    """Return whether a streamed answer is asked for."""
    if "stream" not in body.members:
        return isinstance(body, multipart.Form) and body.get("stream") in ("true", "True", "1")
    stream = body.get("stream")
    if stream is None or isinstance(stream, bool):
        return bool(stream)
    raise InvalidRequest("'stream' must be true or false", param="stream")


def asks_usage(body: AnyBody) -> bool:
    """Return whether the caller itself asked for usage in the stream."""
    if "stream_options" not in body.members:
        return False
    options: Any = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True  # type: ignore[reportUnknownMemberType]  # any JSON


def output_limit(body: AnyBody) -> int | None:
    """Return the most tokens that one answer may have, where the caller says so."""
    members = body.members
    for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if key in members:
            value = body.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None


def temperature_of(body: AnyBody) -> float | None:
    """Return what a request samples with, where it says so; hotter than hot is `_HOTTEST`."""
    value = body.get("temperature") if "temperature" in body.members else None
    if type(value) is int or type(value) is float:
        return float(min(max(value, 0), _HOTTEST))  # an integer may be too large for a float
    return None


def answers(body: AnyBody) -> int:
    """Return how many answers one call has made: `n`, or `best_of` for fewer, for each prompt."""
    members = body.members
    prompts = _prompts(body) if "prompt" in members else 1
    each = _count(body, "n") if "n" in members else 1
    if "best_of" in members:
        each = max(each, _count(body, "best_of"))
    return each * prompts


def _count(body: AnyBody, name: str) -> int:
    value = body.get(name)
    return min(value, _MOST_ANSWERS) if type(value) is int and value > 1 else 1


def _prompts(body: AnyBody) -> int:
    """Count the prompts of a completion: strings or lists of tokens; one that is neither is one."""
    text = bytes(body.members["prompt"])
    if not text.startswith(b"["):
        return 1
    if len(text) > _COUNTED:  # decoded, a hostile one would hold up everybody
        inner = text[1:].lstrip()
        return max(1, inner.count(b"[") if inner.startswith(b"[") else inner.count(b'"') // 2)
    listed = body.get("prompt")
    return 1 if not listed or isinstance(listed[0], int) else len(listed)


def outcome_of(inbound: Inbound) -> Outcome:
    """Return what is known of a call's outcome before it has begun."""
    request = inbound.request
    return Outcome(
        request_id=inbound.shown_id,
        engine_id="" if inbound.shown_id == request.id else request.id,
        pool=request.pool,
        route=request.route,
        tenant=request.tenant,
        model=inbound.model,
        stream=request.stream,
        received=request.arrived,
        bytes_in=request.body_bytes,
        sla=request.sla,
        predicted_tokens=request.output_tokens_estimate if inbound.pool.arrangement.predicts else 0,
        trace=inbound.trace.traceparent,
    )
