"""llama.cpp: `llama-server`. Read and run at b11434 and read at commit 0c1e57098.

Unknown members are ignored there, and so is the model's name unless the server is a router. It has
no priority and no cache salt. Its sampling defaults are its own (temperature 0.8, top_k 40, ...);
forebay adds none. It has no abort either: a stream stops when its connection closes, but a whole
answer is only given up once nothing at all has happened on the server for a second, so a busy one
finishes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from forebay.policies.contracts import InvalidRequest, Route

from . import errors
from .asking import ask, ask_if_known, ask_json, ask_optional, read_models
from .base import Load, ModelCard, Probe, Translation, Verdict
from .edits import ask_usage, drop_control, set_model
from .loose import read_int, read_list, read_object, read_text
from .metrics_text import read_highest, read_total

if TYPE_CHECKING:
    import httpx

    from .base import Call, EngineError, Target
    from .errors import ErrorBody

_NO_SCORE = "llama.cpp has no /v1/score; use /v1/rerank, or an endpoint of another engine"
_NO_MESSAGES = (
    "llama.cpp tokenizes a prompt, not messages; send a prompt, or ask"
    " /v1/messages/count_tokens for the number"
)
_NO_PROMPT = "a prompt to tokenize is missing; send `prompt`"
_RENAMED = ("prompt", "add_special_tokens", "return_token_strs")
_OWN_FAULTS = (
    "got exception:",
    "compute error",
    "invalid input batch",
    "failed to get",
    "failed to process",
    "context shift",
    "the current context",
    "unknown error",
)
"""How the message of a 500 begins where the server is at fault. Any other is about the request:
an image sent to a text model, a wrong member, a prompt past the batch size are all 500 here."""
_NO_ROOM = "context size has been exceeded"


class LlamaCpp:
    """Speaks to llama-server."""

    engine: ClassVar[str] = "llamacpp"
    keep_alive_s: ClassVar[float] = 5.0
    wants_abort: ClassVar[bool] = False
    control_fields: ClassVar[frozenset[str]] = frozenset(
        {
            # Slots, and whose cached prefix is in them.
            "id_slot",
            "cache_prompt",
            "n_cache_reuse",
            "n_keep",
            "n_discard",
            # Adapters, and the parser and template state that the server computes itself.
            "lora",
            "chat_template",
            "chat_format",
            "chat_parser",
            "generation_prompt",
            "message_delimiters",
            "preserved_tokens",
            "grammar_type",
            # Shapes of the answer that nobody could meter; debugging output.
            "response_fields",
            "verbose",
            "sse_ping_interval",
            "reasoning_control",
            # Speculation and sampling in the server's own hands.
            "backend_sampling",
            "speculative.n_max",
            "speculative.n_min",
            "speculative.p_min",
            "speculative.type",
            "speculative.ngram_size_n",
            "speculative.ngram_size_m",
            "speculative.ngram_min_hits",
        }
    )
    control_headers: ClassVar[frozenset[str]] = frozenset(
        {"x-api-key", "x-conversation-id", "x-request-id"}
    )

    def translate(self, call: Call) -> Translation:
        """Take control members out; put our name and usage wish in; tokenize in its own words.

        Raises InvalidRequest for a route, or a form of one, that the server never has.
        """
        if call.route is Route.SCORE:
            raise InvalidRequest(_NO_SCORE, status=404, code="route_not_found")
        edits = set_model(call)
        if call.route is Route.TOKENIZE:
            return self._tokenize(call, edits)
        if call.route is Route.CHAT:  # the streams of other routes tell their usage anyway
            ask_usage(call, edits)
        return Translation(
            call.path,
            edits,
            drop_control(call, self.control_fields, edits),
            (("x-request-id", call.request_id),),
            answer=_detokenized if call.route is Route.DETOKENIZE else None,
        )

    def read_error(self, status: int, body: bytes) -> EngineError:
        """Read an error: most faults of the caller that the server throws are a 500 here."""
        said = errors.read_body(status, body)
        return errors.error_of(_judge(status, said), said)

    async def probe(self, http: httpx.AsyncClient, target: Target) -> Probe:
        """Ask for health, models and slots; the start time is not told, but counters begin anew."""
        await ask(http, target, "/health")
        listed = await ask_json(http, target, "/v1/models")
        told, metrics = await ask_optional(http, target, "/props", "/metrics")
        props = read_object(told)
        context = read_int(read_object(props.get("default_generation_settings")).get("n_ctx"))
        return Probe(
            engine=self.engine,
            version=read_text(props.get("build_info")),
            models=tuple(
                ModelCard(card.name, context or card.max_model_len) for card in read_models(listed)
            ),
            limit=read_int(props.get("total_slots")) or None,
            generated=read_highest(metrics or b"", b"llamacpp:prompt_tokens_total"),
            any_model=not _is_router(listed),
        )

    async def read_load(self, http: httpx.AsyncClient, target: Target) -> Load:
        """Read the gauges, or count busy slots where metrics are off; KV use is not told."""
        text = await ask_if_known(http, target, "/metrics") or b""
        running = read_total(text, b"llamacpp:requests_processing")
        if running is None:
            return Load(running=_busy(await ask_if_known(http, target, "/slots")))
        return Load(running=running, waiting=read_total(text, b"llamacpp:requests_deferred"))

    async def abort(self, http: httpx.AsyncClient, target: Target, request_id: str) -> None:
        """Nothing to do: closing the connection is all there is."""

    def _tokenize(self, call: Call, edits: dict[str, bytes]) -> Translation:
        members = call.members
        if "messages" in members:
            raise InvalidRequest(_NO_MESSAGES, param="messages")
        if "prompt" not in members:
            raise InvalidRequest(_NO_PROMPT, param="prompt")
        edits["content"] = bytes(members["prompt"])
        edits["add_special"] = bytes(members.get("add_special_tokens", b"true"))
        if bytes(members.get("return_token_strs", b"")) == b"true":
            edits["with_pieces"] = b"true"
        renamed = tuple(name for name in _RENAMED if name in members)
        dropped = drop_control(call, self.control_fields, edits)
        headers = (("x-request-id", call.request_id),)
        return Translation(call.path, edits, renamed + dropped, headers, answer=_tokenized)


def _tokenized(body: bytes) -> bytes:
    # The context length is not told there.
    tokens = read_object(body).get("tokens")
    if tokens is None:
        return body
    items = read_list(tokens)
    answer: dict[str, object] = {
        "count": len(items),
        "max_model_len": None,
        "tokens": tokens,
        "token_strs": None,
    }
    pieces = [read_object(item) for item in items]
    if items and all("piece" in piece for piece in pieces):
        answer["tokens"] = [piece.get("id") for piece in pieces]
        answer["token_strs"] = [_piece(piece["piece"]) for piece in pieces]
    return msgspec.json.encode(answer)


def _piece(raw: msgspec.Raw) -> str:
    text = read_text(raw)
    if text is not None:
        return text
    # A piece that is no whole character comes as a list of bytes.
    numbers = [read_int(item) or 0 for item in read_list(raw)]
    return bytes(number & 0xFF for number in numbers).decode("utf-8", "replace")


def _detokenized(body: bytes) -> bytes:
    content = read_object(body).get("content")
    return body if content is None else b'{"prompt":%b}' % bytes(content)


def _judge(status: int, said: ErrorBody) -> Verdict:
    text = said.message.lower()
    if status == 500 and said.shaped:
        if text.startswith(_NO_ROOM):
            return Verdict.FULL
        return Verdict.BROKEN if text.startswith(_OWN_FAULTS) else Verdict.NEUTRAL
    # A router answers 400 to a model that it does not have.
    if status == 400 and text.startswith("model '") and text.endswith("' not found"):
        return Verdict.MISCONFIGURED
    return errors.judge(status, said)


def _is_router(models: bytes) -> bool:
    # Only a router lists its models with the state of each.
    return any("status" in read_object(item) for item in read_list(read_object(models).get("data")))


def _busy(slots: bytes | None) -> int | None:
    states = [bytes(read_object(slot).get("is_processing", b"")) for slot in read_list(slots)]
    return states.count(b"true") if states and all(states) else None
