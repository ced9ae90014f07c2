"""Weights that are damaged are refused where they are read, each in words of its own."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.gateway.weights import default_folder, load_encoder
from forebay.policies.contracts import ConfigError
from forebay.scheduler.length.encoder import FILES

if TYPE_CHECKING:
    from pathlib import Path


def shipped() -> dict[str, bytes]:
    return {name: (default_folder() / name).read_bytes() for name in FILES}


def meta(**changes: Any) -> bytes:
    return json.dumps({**json.loads(shipped()["meta.json"]), **changes}).encode()


def no_numbers() -> bytes:
    """The arrays, of which each number is none."""
    known = dict(np.load(io.BytesIO(shipped()["text.npz"])))
    gone: dict[str, Any] = {
        name: each * np.nan if each.dtype.kind == "f" else each for name, each in known.items()
    }
    arrays = io.BytesIO()
    np.savez(arrays, **gone)
    return arrays.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("meta.json", b"", "cannot be read: meta.json: "),
        ("meta.json", b"[]", "cannot be read: "),
        ("meta.json", b"{}", "weights of format None; this version reads 3"),
        ("meta.json", b'{"format": 3}', "'mean' is missing"),
        ("meta.json", meta(format=2), "weights of format 2; this version reads 3"),
        ("meta.json", meta(vocabulary=["a", "b"]), r"a vocabulary begins with \[PAD\]"),
        ("meta.json", meta(models=[f"m{n}" for n in range(999)]), "out of data bounds"),
        ("model.onnx", b"cut short", "model.onnx cannot be run"),
        ("text.npz", b"", "cannot be read: text.npz: "),
        ("text.npz", shipped()["text.npz"][:5000], "cannot be read: text.npz: "),
        ("text.npz", no_numbers(), "they predict nan for a prompt, so they are damaged"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_damaged_weights_are_refused(tmp_path: Path, name: str, content: bytes, why: str):
    for each, known in {**shipped(), name: content}.items():
        (tmp_path / each).write_bytes(known)
    with pytest.raises(ConfigError, match=why) as told:
        load_encoder(tmp_path)
    assert str(told.value).startswith(f"the weights in {str(tmp_path)!r} cannot be read: ")


def test_what_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none': no such file or directory$"):
        load_encoder(tmp_path / "none")
    (tmp_path / "meta.json").write_bytes(shipped()["meta.json"])
    with pytest.raises(ConfigError, match=r"model\.onnx: no such file or directory"):
        load_encoder(tmp_path)
