"""What engines say of their speculation, read from their metrics.

vLLM and llama.cpp count drafts, guessed and accepted tokens. SGLang shows its own recent rate and
how many tokens a verifying step yields. TensorRT-LLM counts them under `/prometheus/metrics` where
it was started with metrics on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.scheduler.speculation import Reading

from .asking import ask_if_known
from .metrics_text import read_highest, read_values

if TYPE_CHECKING:
    import httpx

    from .base import Target

__all__ = ["read_reading", "read_speculation"]

_PATHS = {
    "vllm": "/metrics",
    "llamacpp": "/metrics",
    "sglang": "/metrics",
    "trtllm": "/prometheus/metrics",
}
_COUNTED = {
    "vllm": b"vllm:spec_decode_num_",
    "llamacpp": b"llamacpp:spec_decode_num_",
    "trtllm": b"trtllm_spec_decode_num_",
}


async def read_speculation(http: httpx.AsyncClient, target: Target, engine: str) -> Reading | None:
    """Ask an engine; None where it says nothing of speculation. Raises EngineFailed."""
    path = _PATHS.get(engine)
    text = None if path is None else await ask_if_known(http, target, path)
    return None if text is None else read_reading(engine, text)


def read_reading(engine: str, text: bytes) -> Reading | None:
    """Read an engine's metrics; data-parallel ranks are summed."""
    if engine == "sglang":
        rate = read_highest(text, b"sglang:spec_accept_rate")
        steps = read_highest(text, b"sglang:spec_accept_length")
        # Its length counts the token that verifying yields by itself.
        length = None if steps is None else max(0.0, steps - 1)
        return None if rate is None or not steps else Reading(rate=rate, length=length)
    prefix = _COUNTED[engine]
    drafted = read_values(text, prefix + b"draft_tokens_total")
    accepted = read_values(text, prefix + b"accepted_tokens_total")
    if not drafted or not accepted:
        return None
    # TensorRT-LLM counts no drafts: its guessed tokens stand for them.
    drafts = read_values(text, prefix + b"drafts_total") or drafted
    return Reading(sum(drafts), sum(drafted), sum(accepted))
