"""Adapters by the names that the configuration uses: one instance serves all endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .llamacpp import LlamaCpp
from .openai import OpenAI
from .sglang import SGLang
from .sim import SimAdapter
from .trtllm import TrtLlm
from .vllm import Vllm

if TYPE_CHECKING:
    from .base import Adapter

ADAPTERS: dict[str, Adapter] = {
    "llamacpp": LlamaCpp(),
    "openai": OpenAI(),
    "sglang": SGLang(),
    "trtllm": TrtLlm(),
    "sim": SimAdapter(),
    "vllm": Vllm(),
}

CONTROL_FIELDS: frozenset[str] = frozenset[str]().union(
    *(adapter.control_fields for adapter in ADAPTERS.values())
)
"""Every body member that steers some engine."""
