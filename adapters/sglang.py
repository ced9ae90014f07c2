"""SGLang: `sglang serve`. Read in 0.5.23 and run against it.

Unknown members are ignored there. A stream whose caller left runs on for about two seconds, so each
request gets our own id and is aborted by it. The engine aborts every id that *begins* with what it
is told: ours are 32 hexadecimal digits, so none is the beginning of another, and nothing shorter is
ever sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import msgspec

from forebay.policies.contracts import Route

from . import errors
from .asking import ask, ask_if_known, ask_json, ask_optional, read_models, tell
from .base import Load, ModelCard, Probe, Translation, Verdict
from .edits import ask_usage, drop_control, quote, set_model
from .loose import read_float, read_int, read_list, read_object, read_text, sum_ints
from .metrics_text import read_highest, read_share, read_total

if TYPE_CHECKING:
    import httpx

    from .base import Call, EngineError, Target
    from .errors import ErrorBody
    from .loose import Members

_IDENTIFIED = frozenset((Route.CHAT, Route.COMPLETIONS))
"""Routes whose body takes `rid`. Embeddings do too, but fail on one id for a list of inputs."""
_PRIORITISED = frozenset((Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.EMBEDDINGS))
_SALTED = frozenset((Route.CHAT, Route.COMPLETIONS, Route.RESPONSES))
_ID_LENGTH = 32
_NO_EMBEDDINGS = "This model does not appear to be an embedding model"
"""The route is there whatever the model is; this is how it says that it is of no use."""
_TRACE = '\n\n  File "'
"""What follows in a message are the engine's own source paths."""


class SGLang:
    """Speaks to SGLang."""

    engine: ClassVar[str] = "sglang"
    keep_alive_s: ClassVar[float] = 5.0
    wants_abort: ClassVar[bool] = True
    control_fields: ClassVar[frozenset[str]] = frozenset(
        {
            # Scheduling, and whose request it is.
            "priority",
            "rid",
            "request_id",
            "session_id",
            "session_params",
            "conversation_id",
            "routing_key",
            "custom_labels",
            # Whose cached prefixes are seen, on which rank; hand-off between prefill and decode.
            "cache_salt",
            "extra_key",
            "mm_hashes",
            "routed_dp_rank",
            "data_parallel_rank",
            "disagg_prefill_dp_rank",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "bootstrap_pair_key",
            "decode_tp_size",
            # Code, adapters, and channels into plugins and media loaders.
            "custom_logit_processor",
            "custom_params",
            "lora_path",
            "chat_template",
            "mm_processor_kwargs",
            "images_config",
            "video_config",
            # Prompts that the gateway cannot read, and what the model keeps inside.
            "input_ids",
            "input_embeds",
            "embed_overrides",
            "embed_override_token_id",
            "query_embed_overrides",
            "item_embed_overrides",
            "return_hidden_states",
            "return_pooled_hidden_states",
            "return_routed_experts",
            "routed_experts_start_len",
            # The operator's mark on what is generated.
            "watermark",
        }
    )
    control_headers: ClassVar[frozenset[str]] = frozenset(
        {
            "x-override-rid",
            "x-override-bootstrap-host",
            "x-override-bootstrap-port",
            "x-override-bootstrap-room",
            "x-override-conversation-id",
            "x-override-routed-dp-rank",
            "x-override-disagg-prefill-dp-rank",
            "x-override-priority",
            "x-data-parallel-rank",
            "x-smg-routing-key",
            "x-custom-labels",
            "x-request-id",
        }
    )

    def translate(self, call: Call) -> Translation:
        """Take control members out; put our name, id, salt, priority and usage wish in."""
        edits = set_model(call)
        route = call.route
        if call.members:
            ask_usage(call, edits, continuous=True)
            if route in _IDENTIFIED:
                edits["rid"] = b'"%b"' % call.request_id.encode()
            elif route is Route.RESPONSES:
                edits["request_id"] = b'"resp_%b"' % call.request_id.encode()
            elif route is Route.DETOKENIZE and "skip_special_tokens" not in call.members:
                edits["skip_special_tokens"] = b"false"
            if call.priority is not None and route in _PRIORITISED:
                edits["priority"] = b"%d" % -call.priority
            if call.cache_salt and route in _SALTED:
                edits["cache_salt"] = quote(call.cache_salt)
        return Translation(
            call.path,
            edits,
            drop_control(call, self.control_fields, edits),
            (("x-request-id", call.request_id),),
            answer=_as_prompt if route is Route.DETOKENIZE else None,
        )

    def read_error(self, status: int, body: bytes) -> EngineError:
        """Read an error: 501 is about the request's fields, and a 400 may be about the route."""
        said = errors.read_body(status, body)
        said = replace(said, message=said.message.partition(_TRACE)[0])
        return errors.error_of(_judge(status, said), said)

    async def probe(self, http: httpx.AsyncClient, target: Target) -> Probe:
        """Ask for readiness, models, version, limit and, where metrics have it, start time."""
        if await ask_if_known(http, target, "/ready") is None:
            await ask(http, target, "/health")
        models = read_models(await ask_json(http, target, "/v1/models"))
        info, metrics = await ask_optional(http, target, "/server_info", "/metrics")
        if info is None:
            (info,) = await ask_optional(http, target, "/get_server_info")
        about = read_object(info)
        return Probe(
            engine=self.engine,
            version=read_text(about.get("version")),
            models=tuple(_callable_name(card) for card in models),
            limit=_read_limit(about),
            started=read_highest(metrics or b"", b"process_start_time_seconds"),
            kv_tokens=read_int(about.get("max_total_num_tokens"))
            or read_total(metrics or b"", b"sglang:max_total_num_tokens")
            or None,
            generated=read_highest(metrics or b"", b"sglang:prompt_tokens_total"),
            adapters=read_int(about.get("max_loras_per_batch")) or None,
        )

    async def read_load(self, http: httpx.AsyncClient, target: Target) -> Load:
        """Read the load snapshot, or the gauges of a release that has none."""
        ranks = read_list(
            read_object(await ask_if_known(http, target, "/v1/loads?include=core")).get("loads")
        )
        if ranks:
            return _sum_ranks([read_object(rank) for rank in ranks])
        text = await ask_if_known(http, target, "/metrics") or b""
        return Load(
            running=read_total(text, b"sglang:num_running_reqs"),
            waiting=read_total(text, b"sglang:num_queue_reqs"),
            kv_use=read_share(text, b"sglang:token_usage"),
        )

    async def abort(self, http: httpx.AsyncClient, target: Target, request_id: str) -> None:
        """Abort by our id, in both forms that it was sent in.

        An id of another length is not sent: it could be the beginning of someone else's.
        """
        if len(request_id) != _ID_LENGTH or not request_id.isalnum():
            return
        for rid in (request_id, f"resp_{request_id}"):
            await tell(http, target, "/abort_request", msgspec.json.encode({"rid": rid}))


def _judge(status: int, said: ErrorBody) -> Verdict:
    if status == 501 and said.shaped:
        return Verdict.NEUTRAL
    if status == 400 and said.message.startswith(_NO_EMBEDDINGS):
        return Verdict.MISSING_ROUTE
    return errors.judge(status, said)


def _callable_name(card: ModelCard) -> ModelCard:
    # A LoRA adapter is listed by its own name, and asked for as `base:adapter`.
    if card.parent is None:
        return card
    return ModelCard(f"{card.parent}:{card.name}", card.max_model_len, card.parent)


def _read_limit(info: Members) -> int | None:
    # What the ranks found that they can run, else what the operator asked for.
    ranks = [read_object(rank) for rank in read_list(info.get("internal_states"))]
    found = [read_int(rank.get("effective_max_running_requests_per_dp")) for rank in ranks]
    known = [limit for limit in found if limit]
    if known and len(known) == len(found):
        return sum(known)
    return read_int(info.get("max_running_requests")) or None


def _sum_ranks(ranks: list[Members]) -> Load:
    uses = [use for rank in ranks if (use := read_float(rank.get("token_usage"))) is not None]
    return Load(
        running=sum_ints(ranks, "num_running_reqs"),
        waiting=sum_ints(ranks, "num_waiting_reqs"),
        kv_use=min(1.0, max(0.0, *uses)) if uses else None,
    )


def _as_prompt(body: bytes) -> bytes:
    text = read_object(body).get("text")
    return body if text is None else b'{"prompt":%b}' % bytes(text)
