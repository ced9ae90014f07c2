"""Adapters by the names that the configuration uses: one instance serves all endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .openai import OpenAI
from .vllm import Vllm

if TYPE_CHECKING:
    from .base import Adapter

ADAPTERS: dict[str, Adapter] = {
    "openai": OpenAI(),
    "vllm": Vllm(),
}
