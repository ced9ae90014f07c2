# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Kernels run in Triton's interpreter where there is no GPU; that is decided before any import."""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent

if importlib.util.find_spec("torch") and importlib.util.find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        # Read when a kernel is defined, so before any test module imports one.
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let numpy warn: the interpreter computes masked-out lanes too, and reads 1-element arrays."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
