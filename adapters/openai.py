"""Any OpenAI-compatible server or provider that forebay knows nothing more about.

No load is read and none is reported: unknown, not idle. `url` has no `/v1` at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from . import errors
from .asking import ask_if_known, read_models
from .base import Load, Probe, Translation
from .edits import ask_usage, drop_control, set_model

if TYPE_CHECKING:
    import httpx

    from .base import Call, EngineError, Target


class OpenAI:
    """Speaks to a server of which only its API is known."""

    engine: ClassVar[str] = "openai"
    keep_alive_s: ClassVar[float] = 30.0
    wants_abort: ClassVar[bool] = False
    control_fields: ClassVar[frozenset[str]] = frozenset(
        {
            # What engines behind it may obey: scheduling, ids, caches, hand-off, code.
            "priority",
            "request_id",
            "rid",
            "session_id",
            "cache_salt",
            "extra_key",
            "kv_transfer_params",
            "disaggregated_params",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "routed_dp_rank",
            "data_parallel_rank",
            "id_slot",
            "vllm_xargs",
            "chat_template",
            "custom_logit_processor",
            "custom_params",
            "lora_path",
            "lora_request",
            # What is paid for at a provider: a dearer tier.
            "service_tier",
            # What routers behind it may obey: another model, another address, another's key.
            "models",
            "fallbacks",
            "route",
            "provider",
            "plugins",
            "transforms",
            "deployment_id",
            "custom_llm_provider",
            "api_base",
            "api_key",
            "api_version",
            "base_url",
            "user_config",
            "mock_response",
        }
    )
    control_headers: ClassVar[frozenset[str]] = frozenset(
        {
            "authorization",
            "api-key",
            "x-api-key",
            "cookie",
            "openai-organization",
            "openai-project",
            "openai-beta",
            "x-request-id",
            "x-client-request-id",
            "idempotency-key",
        }
    )

    def translate(self, call: Call) -> Translation:
        """Take control members out; put our name and usage wish in. No salt, no priority."""
        edits = set_model(call)
        if call.members:
            ask_usage(call, edits)
        return Translation(
            call.path,
            edits,
            drop_control(call, self.control_fields, edits),
            (("x-request-id", call.request_id),),
        )

    def read_error(self, status: int, body: bytes) -> EngineError:
        """Read an error by what all engines share."""
        return errors.read_error(status, body)

    async def probe(self, http: httpx.AsyncClient, target: Target) -> Probe:
        """Ask for the models; a server without that list still counts as there."""
        body = await ask_if_known(http, target, "/v1/models")
        models = () if body is None else read_models(body)
        return Probe(engine=self.engine, models=models, any_model=True)

    async def read_load(self, http: httpx.AsyncClient, target: Target) -> Load:  # noqa: ARG002 - the contract's
        """Know nothing."""
        return Load()

    async def abort(self, http: httpx.AsyncClient, target: Target, request_id: str) -> None:
        """Nothing to do: closing the connection is all there is."""
