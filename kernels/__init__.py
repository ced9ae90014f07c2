# pyright: reportUnsupportedDunderAll=false
# (the names are fetched by __getattr__, so that importing this needs no torch)
"""Kernels: how fast the engine can be.

Triton ops with plain torch references beside them, plugins that bring them into the engines, and
speculative drafters. Imports nothing outside the standard library, torch and triton, so that the
wheel can be installed into an engine's environment with `pip install --no-deps`; and
importing this package loads not even those: names below are fetched when first used.

Words: a *page* is one block of a paged KV cache, a *state* an attention output with its softmax
norm (`lse`), a *split* one piece of a sequence that its own program works on, a *plan* the list of
splits of one step.
"""

import importlib
import typing

# A name here is defined in the module beside it; `__all__` repeats them for readers.
_HOMES = {
    "DecodeConfig": "attention.decode",
    "MlaConfig": "attention.mla",
    "PagedCache": "attention.layout",
    "Plan": "attention.splits",
    "PrefillConfig": "attention.prefill",
    "Rope": "attention.layout",
    "Rule": "attention.layout",
    "Workspace": "attention.decode",
    "attention_reference": "attention.reference",
    "decode_plan": "attention.decode",
    "merge_states": "attention.merge",
    "mla_decode": "attention.mla",
    "mla_plan": "attention.mla",
    "paged_decode": "attention.decode",
    "paged_prefill": "attention.prefill",
    "rejection_sample": "sampling.rejection",
    "write_cache": "attention.kv_write",
}

__all__: list[str] = [
    "DecodeConfig",
    "MlaConfig",
    "PagedCache",
    "Plan",
    "PrefillConfig",
    "Rope",
    "Rule",
    "Workspace",
    "attention_reference",
    "decode_plan",
    "merge_states",
    "mla_decode",
    "mla_plan",
    "paged_decode",
    "paged_prefill",
    "rejection_sample",
    "write_cache",
]


def __getattr__(name: str) -> typing.Any:
    """Fetch a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
