"""vLLM: `vllm serve`. Read in 0.26.0 and 0.33.0, run against 0.32.0.

Unknown members are ignored there, so one that a version does not know yet does no harm. Aborting is
closing the connection: the engine drops the request at once, streaming or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from forebay.policies.contracts import Route

from . import errors
from .asking import ask, ask_if_known, ask_json, ask_optional, read_models
from .base import Load, Probe, Translation, Verdict
from .edits import GENERATING, ask_usage, drop_control, quote, set_model
from .loose import read_object, read_text
from .metrics_text import read_highest, read_labels, read_latest, read_share, read_total

if TYPE_CHECKING:
    import httpx

    from .base import Call, EngineError, Target

_SALTED = GENERATING | {Route.EMBEDDINGS, Route.RERANK, Route.SCORE}
_PRIORITISED = _SALTED
_LONGEST = 6
"""Digits of a number of adapters."""


class Vllm:
    """Speaks to vLLM."""

    engine: ClassVar[str] = "vllm"
    keep_alive_s: ClassVar[float] = 5.0
    wants_abort: ClassVar[bool] = False
    control_fields: ClassVar[frozenset[str]] = frozenset(
        {
            # Scheduling, and whose request it is.
            "priority",
            "request_id",
            "session_id",
            "stream_interval",
            # Whose cached prefixes are seen; hand-off between prefill and decode endpoints.
            "cache_salt",
            "kv_transfer_params",
            "ec_transfer_params",
            # Channels into plugins, templates and media loaders.
            "vllm_xargs",
            "chat_template",
            "mm_processor_kwargs",
            "media_io_kwargs",
            # Tensors in and out.
            "prompt_embeds",
            "mm_payload",
            "return_mm_kwargs",
            "routed_experts_prompt_start",
            "return_weight_versions",
            # The operator's mark on what is generated.
            "watermarking",
        }
    )
    control_headers: ClassVar[frozenset[str]] = frozenset(
        {
            "x-request-id",
            "x-session-id",
            "x-vllm-priority",
            "x-data-parallel-rank",
            "endpoint-load-metrics-format",
        }
    )

    def translate(self, call: Call) -> Translation:
        """Take control members out; put our name, salt, priority and usage wish in."""
        edits = set_model(call)
        if call.members:
            ask_usage(call, edits)
            if call.priority and call.route in _PRIORITISED:
                edits["priority"] = b"%d" % call.priority
            if call.cache_salt and call.route in _SALTED:
                edits["cache_salt"] = quote(call.cache_salt)
        return Translation(
            call.path,
            edits,
            drop_control(call, self.control_fields, edits),
            (("x-request-id", call.request_id),),
        )

    def read_error(self, status: int, body: bytes) -> EngineError:
        """Read an error: 501 here is about the request's fields, not about the route."""
        said = errors.read_body(status, body)
        if status == 501 and said.shaped:
            return errors.error_of(Verdict.NEUTRAL, said)
        return errors.error_of(errors.judge(status, said), said)

    async def probe(self, http: httpx.AsyncClient, target: Target) -> Probe:
        """Ask for health, models, version, routes and start time; not the limit: it is not told."""
        await ask(http, target, "/health")
        models = read_models(await ask_json(http, target, "/v1/models"))
        version, metrics, openapi = await ask_optional(
            http, target, "/version", "/metrics", "/openapi.json"
        )
        adapters, running = _read_adapters(metrics or b"")
        return Probe(
            engine=self.engine,
            version=read_text(read_object(version).get("version")),
            models=models,
            routes=_read_routes(openapi),
            started=read_highest(metrics or b"", b"process_start_time_seconds"),
            kv_tokens=_read_kv_tokens(metrics or b""),
            generated=read_highest(metrics or b"", b"vllm:prompt_tokens_total"),
            adapters=adapters,
            running_adapters=running,
        )

    async def read_load(self, http: httpx.AsyncClient, target: Target) -> Load:
        """Read the gauges, summed over data-parallel ranks; KV use is the fullest rank's."""
        text = await ask_if_known(http, target, "/metrics") or b""
        return Load(
            running=read_total(text, b"vllm:num_requests_running"),
            waiting=read_total(text, b"vllm:num_requests_waiting"),
            kv_use=read_share(text, b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        )

    async def abort(self, http: httpx.AsyncClient, target: Target, request_id: str) -> None:
        """Nothing to do: the engine stops when the connection closes."""


def _read_kv_tokens(metrics: bytes) -> int | None:
    ranks = read_labels(
        metrics,
        b"vllm:cache_config_info",
        b"kv_cache_size_tokens",
        b"num_gpu_blocks",
        b"block_size",
    )
    sizes = [whole or (blocks or 0) * (size or 0) for whole, blocks, size in ranks]
    return sum(sizes) or None


def _read_adapters(metrics: bytes) -> tuple[int | None, tuple[str, ...]]:
    """Read how many adapters run at once, and which do: commas part names, the newest sample."""
    labels = (b"max_lora", b"running_lora_adapters", b"waiting_lora_adapters")
    most, *named = read_latest(metrics, b"vllm:lora_requests_info", *labels)
    found = [name.strip() for names in named for name in names.split(",")]
    places = int(most) if most.isdecimal() and len(most) < _LONGEST else 0
    return places or None, tuple(name for name in found if name)


def _read_routes(body: bytes | None) -> frozenset[Route] | None:
    paths = read_object(read_object(body).get("paths"))
    found = frozenset(route for route in Route if route.value in paths)
    return found or None
