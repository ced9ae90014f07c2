# pyright: basic, reportMissingImports=false
"""The network behind `Encoder`, in PyTorch: for training and for export only.

A transformer as BERT's reads a prompt's slots; what it says is joined with the ridges' opinions and
with what is counted, into one vector of the prompt. A second, small network joins that with the
answering model and says: the log length less the model's mean, its spread, and the buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unicodedata import normalize

import torch
from torch import nn
from torch.nn import functional

from .encoder import OPINIONS
from .fields import ROW
from .text import COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

SPOKEN = 7
"""Residual, distances of the .1 and .9 quantiles, four buckets."""


@dataclass(frozen=True)
class Shape:
    """How large a network is."""

    vocabulary: int
    models: int
    kin: int = 0
    layers: int = 6
    width: int = 384
    heads: int = 12
    inner: int = 1152
    positions: int = 512
    prompt: int = 192
    model: int = 32
    dropout: float = 0.1


class Layer(nn.Module):
    """One layer of BERT: attention, then a feed-forward part, each normed after."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm1 = nn.LayerNorm(shape.width, eps=1e-12)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)
        self.norm2 = nn.LayerNorm(shape.width, eps=1e-12)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, S, W] of [B, S, W]; `mask` [B, 1, 1, S] is true where something stands."""
        batch, size, width = x.shape
        parts = self.qkv(x).view(batch, size, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, size, width))))
        return self.norm2(x + self.drop(self.down(functional.gelu(self.up(x)))))


class Net(nn.Module):
    """Prompt and model to what is said of the answer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.opinions = OPINIONS + shape.kin
        self.register_buffer("kin", torch.zeros(shape.models, shape.kin))
        self.tokens = nn.Embedding(shape.vocabulary, shape.width, padding_idx=0)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=1e-12)
        self.drop = nn.Dropout(shape.dropout)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.prompt = nn.Sequential(
            nn.Linear(shape.width * 2 + self.opinions + COUNTED, shape.prompt),
            nn.GELU(),
            nn.Dropout(shape.dropout),
        )
        self.model = nn.Embedding(shape.models, shape.model)
        nn.init.normal_(self.model.weight, std=0.1)
        self.answer = nn.Sequential(
            nn.Linear(shape.prompt + self.opinions + 1 + shape.model + ROW, shape.prompt),
            nn.GELU(),
            nn.Dropout(shape.dropout),
            nn.Linear(shape.prompt, SPOKEN),
        )
        nn.init.zeros_(self.answer[-1].weight)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the slots [B, S, W]: means of their tokens, and where they stand."""
        some = (ids > 0).sum(-1, keepdim=True).clamp(min=1)
        return self.norm(self.tokens(ids).sum(-2) / some + self.positions(positions))

    def read(self, ids: Tensor, positions: Tensor, opinions: Tensor, counts: Tensor) -> Tensor:
        """Return the vectors [B, P + opinions] of prompts; ids [B, S, 8], empty slots are 0."""
        mask = ids[:, :, 0] > 0
        x = self.drop(self.embed(ids, positions))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        there = mask[:, :, None].to(x.dtype)
        mean = (x * there).sum(1) / there.sum(1)
        joined = torch.cat((mean, x[:, 0], opinions, counts), -1)
        return torch.cat((self.prompt(joined), opinions), -1)

    def say(self, prompts: Tensor, models: Tensor, rows: Tensor) -> Tensor:
        """Return what is said [N, SPOKEN] of prompts [N, P] answered by models [N]."""
        told = prompts[:, -self.opinions :]
        start = own_opinion(told, self.kin[models])
        joined = torch.cat((prompts, start, self.model(models), rows), -1)
        said = self.answer(joined)
        # The ridges' residual is the starting point; the network says what they got wrong.
        return torch.cat((said[:, :1] + start, said[:, 1:]), -1)


def own_opinion(told: Tensor, kin: Tensor) -> Tensor:
    """Return [N, 1]: the mean of what the ridge of all says, and that of the model's kin.

    `told` [N, OPINIONS + K], `kin` [N, K]; of a model without kin the ridge of all alone.
    """
    common = told[:, :1]
    own = (told[:, OPINIONS:] * kin).sum(-1, keepdim=True)
    return common + (own - common * kin.sum(-1, keepdim=True)) / 2


def start_from(
    net: Net, weights: Mapping[str, Tensor], pieces: Mapping[str, int], own: list[str]
) -> None:
    """Take over a BERT's weights: the first layers, and the pieces that both know.

    `pieces` are ids in `weights` by piece, `own` the network's vocabulary in order. A sign that
    `weights` lack, as a full-width comma, starts as the plain one it stands for. Raises ValueError
    where the shapes do not fit.
    """
    _check(net.shape, weights)
    with torch.no_grad():
        table = weights["embeddings.word_embeddings.weight"].float()
        kinds = weights["embeddings.token_type_embeddings.weight"][0].float()
        mean = table.mean(0)
        noise = torch.randn(len(own), table.shape[1]) * table.std() * 0.5
        known = [pieces.get(piece) or pieces.get(normalize("NFKC", piece)) for piece in own]
        rows = [
            mean + noise[number] if row is None else table[row] for number, row in enumerate(known)
        ]
        net.tokens.weight.copy_(torch.stack(rows))
        net.tokens.weight[0] = 0
        net.positions.weight.copy_(weights["embeddings.position_embeddings.weight"] + kinds)
        _take(net.norm, weights, "embeddings.LayerNorm")
        for number, layer in enumerate(net.layers):
            _take_layer(layer, weights, f"encoder.layer.{number}")  # type: ignore[arg-type]  # ModuleList


def _check(shape: Shape, weights: Mapping[str, Tensor]) -> None:
    width = weights["embeddings.word_embeddings.weight"].shape[1]
    if width != shape.width:
        raise ValueError(f"weights to start from are {width} wide; an encoder is {shape.width}")
    if f"encoder.layer.{shape.layers - 1}.output.dense.weight" not in weights:
        raise ValueError(f"weights to start from have fewer layers than {shape.layers}")


def _take_layer(layer: Layer, weights: Mapping[str, Tensor], name: str) -> None:
    own = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    layer.qkv.weight.copy_(torch.cat([weights[f"{each}.weight"] for each in own]))
    layer.qkv.bias.copy_(torch.cat([weights[f"{each}.bias"] for each in own]))
    _take(layer.out, weights, f"{name}.attention.output.dense")
    _take(layer.norm1, weights, f"{name}.attention.output.LayerNorm")
    up, down = weights[f"{name}.intermediate.dense.weight"], weights[f"{name}.output.dense.weight"]
    kept = _heaviest(up, down, layer.up.out_features)
    layer.up.weight.copy_(up[kept])
    layer.up.bias.copy_(weights[f"{name}.intermediate.dense.bias"][kept])
    layer.down.weight.copy_(down[:, kept])
    layer.down.bias.copy_(weights[f"{name}.output.dense.bias"])
    _take(layer.norm2, weights, f"{name}.output.LayerNorm")


def _heaviest(up: Tensor, down: Tensor, count: int) -> Tensor:
    """Return the `count` inner units of a layer that move its output most, in order."""
    weight = up.norm(dim=1) * down.norm(dim=0)
    return weight.topk(min(count, len(weight))).indices.sort().values


def _take(module: nn.Linear | nn.LayerNorm, weights: Mapping[str, Tensor], name: str) -> None:
    module.weight.copy_(weights[f"{name}.weight"])
    module.bias.copy_(weights[f"{name}.bias"])


def learning_rates(step: int, steps: int, peak: float) -> float:
    """Return the one-cycle rate: up over the first tenth, down to nothing by a cosine."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
