# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Paged caches with every trap set: shuffled pages, NaN in each slot that must not be read."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest

HAS_TRITON = bool(importlib.util.find_spec("torch") and importlib.util.find_spec("triton"))
if HAS_TRITON:
    import torch

    ON_GPU = torch.cuda.is_available()
    if not ON_GPU:
        # Read when a kernel is defined, so before any test module imports one.
        os.environ.setdefault("TRITON_INTERPRET", "1")
else:
    ON_GPU = False


@pytest.fixture
def device() -> str:
    return "cuda" if ON_GPU else "cpu"


@pytest.fixture
def make_case(device: str) -> Callable[..., Any]:
    """Return the builder of `kernel_cases`, bound to this machine's device."""
    from forebay.kernels.testing import make_case as build

    def bound(**options: Any) -> Any:
        return build(device=device, **options)

    return bound
