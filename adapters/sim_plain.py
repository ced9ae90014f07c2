"""The embedded engine's routes that need no model: models, health, metrics, tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .sim_job import Reply, SimError, read_body
from .sim_reading import Message, ToolBody, read_turns
from .sim_text import VOCABULARY, decode, encode, render, token_bytes

if TYPE_CHECKING:
    from .sim_engine import SimEngine
    from .sim_job import Received

VERSION = "0.33.0+sim"
_encode = msgspec.json.encode
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class TokenizeBody(msgspec.Struct):
    """POST /tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolBody] | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


def health(engine: SimEngine, received: Received) -> Reply:  # noqa: ARG001 - as all handlers
    """Say that it lives."""
    return Reply(b"")


def version(engine: SimEngine, received: Received) -> Reply:  # noqa: ARG001 - as all handlers
    """Say which version of vLLM it is shaped like."""
    return Reply(_encode({"version": VERSION}))


def load(engine: SimEngine, received: Received) -> Reply:  # noqa: ARG001 - as all handlers
    """Say how many requests are under way."""
    return Reply(b'{"server_load":%d}' % (engine.running() + engine.model.waiting))


def models(engine: SimEngine, received: Received) -> Reply:  # noqa: ARG001 - as all handlers
    """List the models."""
    cards = [
        {
            "id": name,
            "object": "model",
            "created": int(engine.started),
            "owned_by": "forebay",
            "root": name,
            "parent": None,
            "max_model_len": engine.max_model_len,
        }
        for name in engine.settings.models
    ]
    return Reply(_encode({"object": "list", "data": cards}))


def tokenize(engine: SimEngine, received: Received) -> Reply:
    """Turn a prompt or messages into token ids."""
    body = read_body(received.body, TokenizeBody)
    engine.check_model(body.model)
    if body.messages is not None:
        turns = read_turns(body.messages)
        if body.tools:
            turns.insert(0, ("system", _encode(body.tools).decode()))
        tokens = render(turns)
    elif body.prompt is not None:
        tokens = encode(body.prompt)
    else:
        raise SimError("tokenize needs a prompt or messages", kind="Bad Request")
    shown = [token_bytes(token).decode("utf-8", "replace") for token in tokens]
    return Reply(
        _encode(
            {
                "count": len(tokens),
                "max_model_len": engine.max_model_len,
                "tokens": tokens,
                "token_strs": shown if body.return_token_strs else None,
            }
        )
    )


def detokenize(engine: SimEngine, received: Received) -> Reply:
    """Turn token ids into text."""
    body = read_body(received.body, DetokenizeBody)
    engine.check_model(body.model)
    if any(not 0 <= token < VOCABULARY for token in body.tokens):
        raise SimError(f"token ids must be from 0 to {VOCABULARY - 1}", param="tokens")
    return Reply(_encode({"prompt": decode(body.tokens)}))


def metrics(engine: SimEngine, received: Received) -> Reply:  # noqa: ARG001 - as all handlers
    """Render the metrics, named as vLLM's."""
    model, profile = engine.model, engine.profile
    label = f'engine="0",model_name="{engine.settings.models[0]}"'
    lines = [
        *_metric("process_start_time_seconds", "gauge", {"": engine.started}),
        *_metric("vllm:num_requests_running", "gauge", {label: engine.running()}),
        *_metric("vllm:num_requests_waiting", "gauge", {label: model.waiting}),
        *_metric("vllm:kv_cache_usage_perc", "gauge", {label: model.kv_use}),
        *_metric("vllm:prefix_cache_queries_total", "counter", {label: model.queried_tokens}),
        *_metric("vllm:prefix_cache_hits_total", "counter", {label: model.hit_tokens}),
        *_metric("vllm:num_preemptions_total", "counter", {label: model.preemptions}),
        *_metric("vllm:prompt_tokens_total", "counter", {label: engine.prompt_tokens}),
        *_metric("vllm:generation_tokens_total", "counter", {label: model.generated_tokens}),
        *_metric(
            "vllm:request_success_total",
            "counter",
            {f'{label},finished_reason="{why}"': n for why, n in engine.finished.items()},
        ),
        *_metric(
            "vllm:cache_config_info",
            "gauge",
            {
                f'block_size="{profile.block_tokens}",enable_prefix_caching="True",engine="0",'
                f'num_gpu_blocks="{profile.num_blocks}"': 1
            },
        ),
    ]
    return Reply("\n".join([*lines, ""]).encode(), content_type=_TEXT)


def _metric(name: str, kind: str, samples: dict[str, Any]) -> list[str]:
    lines = [f"# TYPE {name} {kind}"]
    lines += [
        f"{name}{{{labels}}} {float(value)!r}" if labels else f"{name} {float(value)!r}"
        for labels, value in samples.items()
    ]
    return lines
