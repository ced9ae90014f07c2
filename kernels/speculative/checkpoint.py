# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Read and write checkpoints in the safetensors format, with the standard library and torch alone.

The format: 8 bytes with the head's length, little-endian; the head, JSON of each tensor's type,
shape and place; the tensors' bytes. A folder of shards has `model.safetensors.index.json` beside
them.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_config", "load_tensors", "save_tensors", "write_json"]

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def load_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's config.json; raises ValueError when there is none or it is damaged."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} has no config.json, so it is no checkpoint") from None
    except ValueError as error:
        raise ValueError(f"{folder}/config.json: {error}") from None


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Map all tensors of a folder; they share the files' pages until they are changed or moved."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors")
    found: dict[str, torch.Tensor] = {}
    for file in files:
        found.update(_read(file))
    return found


def _read(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        # A private mapping: torch wants memory that could be written to.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    size = int.from_bytes(mapped[:8], "little")
    try:
        head = json.loads(mapped[8 : 8 + size])
        head.pop("__metadata__", None)
        told_of = {n: (t["dtype"], t["shape"], *t["data_offsets"]) for n, t in head.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{path} has a damaged head, copy it again") from None
    found: dict[str, torch.Tensor] = {}
    for name, (dtype, shape, start, end) in told_of.items():
        kind = _TYPES.get(dtype)
        if kind is None:
            raise ValueError(f"{path}: {name} is of type {dtype}, there are {', '.join(_TYPES)}")
        if start == end:
            found[name] = torch.empty(shape, dtype=kind)
            continue
        raw = torch.frombuffer(
            mapped, dtype=torch.uint8, count=end - start, offset=8 + size + start
        )
        # An offset that is no multiple of the element's size cannot be viewed as that type.
        raw = raw.clone() if (8 + size + start) % kind.itemsize else raw
        found[name] = raw.view(kind).view(shape)
    return found


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors to one file, which appears whole or not at all."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, parts = 0, []
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        size = flat.numel() * flat.element_size()
        head[name] = {
            "dtype": _NAMES[flat.dtype],
            "shape": list(flat.shape),
            "data_offsets": [at, at + size],
        }
        at += size
        parts.append(flat)
    told = json.dumps(head, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(len(told).to_bytes(8, "little") + told)
            for flat in parts:
                file.write(_bytes(flat))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _bytes(flat: torch.Tensor) -> bytearray:
    # Without numpy a tensor gives its bytes to nobody, but it can be copied into some.
    raw = bytearray(flat.numel() * flat.element_size())
    if raw:
        torch.frombuffer(raw, dtype=torch.uint8).copy_(flat.view(-1).view(torch.uint8))
    return raw


def write_json(path: Path, value: object) -> None:
    """Write JSON that appears whole or not at all."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
