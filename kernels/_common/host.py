# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Launch-side helpers: device facts, configuration tables, argument checks.

Tensors on torch's `meta` device stand for the H200: the compile gate (aot.py) launches on them.
"""

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "LOG2E",
    "check",
    "config_files",
    "config_for",
    "device_key",
    "is_hopper",
    "next_power_of_2",
    "sm_count",
    "starts_early",
]

LOG2E = math.log2(math.e)
_CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def check(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as assert
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is not below `n`."""
    return 1 << max(n - 1, 0).bit_length()


@functools.cache
def sm_count(device: torch.device) -> int:
    """Multiprocessors of a GPU; 4 on the CPU, where only the interpreter runs."""
    if device.type != "cuda":
        return 132 if device.type == "meta" else 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel can be launched before the one ahead has ended (Hopper and later)."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "meta"


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Whether this GPU has Hopper's matrix instructions, which later ones do not have."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] == 9
    return device.type == "meta"


@functools.cache
def device_key(device: torch.device) -> str:
    """Name of the folder under configs/ that holds this device's tables."""
    if device.type != "cuda":
        return "NVIDIA_H200" if device.type == "meta" else "cpu"
    return re.sub(r"\W+", "_", torch.cuda.get_device_name(device))


def config_files(device: torch.device) -> list[str]:
    """Names of the tuned tables for this device."""
    return sorted(path.stem for path in (_CONFIGS / device_key(device)).glob("*.json"))


@functools.cache
def _table(folder: str, op: str) -> dict[str, dict[str, Any]]:
    path = _CONFIGS / folder / f"{op}.json"
    return json.loads(path.read_text())["configs"] if path.exists() else {}


def config_for(op: str, key: str, device: torch.device, built_in: dict[str, Any]) -> dict[str, Any]:
    """Launch settings for one shape class: the device's table over the built-in ones.

    Nothing is tuned here: a table is made offline, by benchmarks/bench_configs.py.
    """
    return built_in | _table(device_key(device), op).get(key, {})
