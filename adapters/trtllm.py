"""TensorRT-LLM: `trtllm-serve`. Read in the 1.2 line and in late 2026's main; not run.

Unlike the others it refuses a request with any member that it does not know. So a chat or a
completion is held against those that it does: an unknown one that changes nothing in the answer is
taken out, and one that would is refused here, by name.

The engine polls for callers that left once a second; closing the connection is all there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from forebay.policies.contracts import InvalidRequest, Route

from . import errors
from .asking import ask, ask_if_known, ask_json, ask_optional, read_models, take_if_known
from .base import Load, Probe, Translation, Verdict
from .edits import drop_control, quote, set_model
from .loose import read_int, read_list, read_object, read_text, sum_ints
from .metrics_text import read_highest

if TYPE_CHECKING:
    import httpx

    from .base import Call, EngineError, Target
    from .loose import Members

_NEVER = frozenset((Route.TOKENIZE, Route.DETOKENIZE, Route.SCORE, Route.TRANSCRIPTIONS))

_SHARED_FIELDS = frozenset(
    (
        *("model", "stream", "stream_options", "user", "n", "best_of", "seed", "stop", "echo"),
        *("temperature", "top_p", "top_k", "top_p_min", "min_p", "logit_bias", "logprobs"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty"),
        *("use_beam_search", "early_stopping", "stop_token_ids", "include_stop_str_in_output"),
        *("ignore_eos", "min_tokens", "max_tokens", "truncate_prompt_tokens", "response_format"),
        *("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"),
        *("thinking_token_budget", "prompt_ignore_length"),
    )
)
_FIELDS: dict[Route, frozenset[str]] = {
    Route.CHAT: _SHARED_FIELDS
    | {
        *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"),
        *("reasoning_effort", "thinking", "documents"),
        *("add_generation_prompt", "chat_template_kwargs"),
    },
    Route.COMPLETIONS: _SHARED_FIELDS | {"prompt", "suffix", "detokenize"},
}
_EXTRAS = frozenset(
    (
        *("store", "metadata", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prediction"),
    )
)
"""Members of OpenAI's API that change how a call is kept or paid for, not what is answered."""
_DEFAULTS: dict[str, bytes] = {"parallel_tool_calls": b"true", "modalities": b'["text"]'}
"""Members that may go when they say what the engine does anyway."""

_NO_USAGE = b'{"include_usage":false,"continuous_usage_stats":false}'
_USAGE_AT_END = b'{"include_usage":true,"continuous_usage_stats":false}'
_PATIENCE_S = 5.0
_MOST_EVENTS = 64 << 20
"""Bytes: a block of 32 tokens takes two thousand, a prompt of 128,000 nine million."""
"""An idle engine answers GET /metrics after two seconds."""

_OWN_FAULTS = (
    "cuda",
    "nccl",
    "mpi",
    "out of memory",
    "assertion failed",
    "internal error",
    "executor",
    "runtimeerror",
    "[tensorrt-llm]",
)
"""How the message of an internal error begins: most exceptions are a 400 here, the engine's own
included. Further on a message may quote the caller, so only its beginning counts."""


class TrtLlm:
    """Speaks to TensorRT-LLM."""

    engine: ClassVar[str] = "trtllm"
    keep_alive_s: ClassVar[float] = 5.0
    wants_abort: ClassVar[bool] = False
    control_fields: ClassVar[frozenset[str]] = frozenset(
        {
            # Scheduling, and whose request it is.
            "priority",
            "request_id",
            "conversation_params",
            "agent_hierarchy",
            # Whose cached prefixes are seen; hand-off between context and generation endpoints.
            "cache_salt",
            "disaggregated_params",
            # Adapters by path, templates, media loaders.
            "lora_request",
            "chat_template",
            "mm_processor_kwargs",
            "media_io_kwargs",
            # Prompts that the gateway cannot read, and what the model keeps inside.
            "prompt_token_ids",
            "prompt_token_ids_b64",
            "return_context_logits",
        }
    )
    control_headers: ClassVar[frozenset[str]] = frozenset(
        {"x-trtllm-return-metrics", "x-conversation-id", "x-session-id", "x-request-id"}
    )

    def translate(self, call: Call) -> Translation:
        """Hold the members against what the engine knows, and put ours in.

        Raises InvalidRequest for a member that it does not know and that would change the answer.
        """
        if call.route in _NEVER:
            raise InvalidRequest(
                f"TensorRT-LLM has no {call.route}; send this to an endpoint of another engine",
                status=404,
                code="route_not_found",
            )
        edits = set_model(call)
        known = _FIELDS.get(call.route)
        if known is not None and call.members:
            _put_ours_in(call, edits)
        dropped = drop_control(call, self.control_fields, edits)
        if known is not None and not known.issuperset(call.members):
            dropped += self._unknown(call, known)
        if "max_completion_tokens" in call.members and "max_tokens" in call.members:
            dropped += ("max_tokens",)
        return Translation(call.path, edits, dropped, (("x-request-id", call.request_id),))

    def read_error(self, status: int, body: bytes) -> EngineError:
        """Read an error: a 400 may be the engine's own failure, told by its first words alone."""
        said = errors.read_body(status, body)
        if status == 501 and said.shaped:
            return errors.error_of(Verdict.NEUTRAL, said)
        if status == 400 and said.message.lower().startswith(_OWN_FAULTS):
            return errors.error_of(Verdict.BROKEN, said)
        return errors.error_of(errors.judge(status, said), said)

    async def probe(self, http: httpx.AsyncClient, target: Target) -> Probe:
        """Ask for health, model, version and start time; not GET /metrics: reading drains it."""
        await ask(http, target, "/health")
        models = read_models(await ask_json(http, target, "/v1/models"))
        version, metrics = await ask_optional(http, target, "/version", "/prometheus/metrics")
        return Probe(
            engine=self.engine,
            version=read_text(read_object(version).get("version")),
            models=models,
            started=read_highest(metrics or b"", b"process_start_time_seconds"),
        )

    async def read_load(self, http: httpx.AsyncClient, target: Target) -> Load:
        """Read the last iteration; this drains the engine's list, so nobody else may read it.

        An idle engine has none to tell, and needs two seconds for that: its load is unknown then.
        """
        body = await ask_if_known(http, target, "/metrics", patience=_PATIENCE_S)
        return _last_iteration([read_object(item) for item in read_list(body)])

    async def take_events(self, http: httpx.AsyncClient, target: Target) -> bytes | None:
        """Take what the cache has told since the last time: nobody else gets it then.

        None: this endpoint has no such route. Raises as `probe` does.
        """
        return await take_if_known(
            http, target, "/kv_cache_events", patience=_PATIENCE_S, most=_MOST_EVENTS
        )

    async def abort(self, http: httpx.AsyncClient, target: Target, request_id: str) -> None:
        """Nothing to do: the engine stops within a second after the connection closed."""

    def _unknown(self, call: Call, known: frozenset[str]) -> tuple[str, ...]:
        names = call.members.keys() - known - self.control_fields - call.allow
        for name in names:
            value = bytes(call.members[name])
            if name not in _EXTRAS and value not in (b"null", _DEFAULTS.get(name)):
                raise InvalidRequest(
                    f"TensorRT-LLM does not know {name[:64]!r}, and leaving it out would change"
                    " the answer; remove it, or send this to an endpoint of another engine",
                    param=name[:64],
                    code="unknown_parameter",
                )
        return tuple(sorted(names))


def _put_ours_in(call: Call, edits: dict[str, bytes]) -> None:
    if "response_format" in call.members:
        _set_format(call, edits)
    if call.stream:
        _set_stream_options(call, edits)
    if call.priority is not None:
        edits["priority"] = _weigh(call.priority)
    if call.cache_salt and call.route is Route.CHAT:
        edits["cache_salt"] = quote(call.cache_salt)


def _set_stream_options(call: Call, edits: dict[str, bytes]) -> None:
    # Said always: where nothing is said, releases differ in what usage they send.
    sent = call.members.get("stream_options")
    options = read_object(sent)
    if sent is not None and not options and bytes(sent) not in (b"null", b"{}"):
        return
    if bytes(options.get("include_usage", b"")) != b"true":
        edits["stream_options"] = _USAGE_AT_END if call.meter_usage else _NO_USAGE
    elif "continuous_usage_stats" not in options:
        edits["stream_options"] = _USAGE_AT_END


def _set_format(call: Call, edits: dict[str, bytes]) -> None:
    # OpenAI's json_schema in the older form, which every release takes.
    wanted = read_object(call.members["response_format"])
    if read_text(wanted.get("type")) != "json_schema":
        return
    schema = read_object(wanted.get("json_schema")).get("schema")
    edits["response_format"] = (
        b'{"type":"json_object"}'
        if schema is None
        else b'{"type":"json","schema":%b}' % bytes(schema)
    )


def _weigh(priority: int) -> bytes:
    # Ours: 0 is normal, lower is first. Theirs: 0 to 1, 0.5 is normal, higher is first.
    return msgspec.json.encode(0.5 - priority / (2 * (1 + abs(priority))))


def _last_iteration(iterations: list[Members]) -> Load:
    # The last word of each attention-DP rank; KV use is the fullest rank's.
    ranks: dict[int, Members] = {}
    for iteration in iterations:
        ranks[read_int(iteration.get("attentionDpRank")) or 0] = iteration
    last = list(ranks.values())
    uses = [use for rank in last if (use := _kv_use(rank)) is not None]
    return Load(
        running=sum_ints(last, "numActiveRequests"),
        waiting=sum_ints(last, "numQueuedRequests"),
        kv_use=max(uses) if uses else None,
    )


def _kv_use(iteration: Members) -> float | None:
    blocks = read_object(iteration.get("kvCacheStats"))
    used, total = read_int(blocks.get("usedNumBlocks")), read_int(blocks.get("maxNumBlocks"))
    return min(1.0, used / total) if used is not None and total else None
