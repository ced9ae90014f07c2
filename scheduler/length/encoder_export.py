# pyright: basic, reportMissingImports=false
"""A trained network as ONNX: weights of matrix products and tables in 8 bits.

What goes into a product becomes 8 bits as well, when it runs, from the least to the most of a
prompt's numbers. In each layer a single number goes up to twelve times as far as the others, which
would then be told apart no more. `reach` finds those, and `export` draws them in: they are
multiplied by less than one, and their weights by more.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import nn
from torch.nn import functional

from .encoder import OPINIONS
from .fields import ROW
from .slots import WIDTH
from .text import COUNTED

if TYPE_CHECKING:
    from torch import Tensor

    from .encoder_net import Layer, Net
    from .encoder_tables import Inputs

_READ = 256
"""Prompts that are read to find out how far numbers go."""
_USUAL = 0.9
"""Numbers are drawn in to this quantile of a layer's, by how far they go."""


class Reach(NamedTuple):
    """How far numbers go, at most, by layer: before a feed-forward part [L, W], within [L, I]."""

    before: Tensor
    within: Tensor


def reach(net: Net, inputs: Inputs) -> Reach:
    """Return how far numbers of some prompts go."""
    shape = net.shape
    found = Reach(torch.zeros(shape.layers, shape.width), torch.zeros(shape.layers, shape.inner))
    hooks = [
        part.register_forward_pre_hook(_noting(most[number]))
        for number, layer in enumerate(net.layers)
        for part, most in zip((layer.up, layer.down), found, strict=True)
    ]
    with torch.no_grad():
        for prompt in np.linspace(0, len(inputs.slots) - 1, _READ).astype(int):
            told = (*inputs.slots[prompt], inputs.opinions[prompt], inputs.counts[prompt])
            net.read(*(torch.from_numpy(each)[None] for each in told))
    for hook in hooks:
        hook.remove()
    return found


def _noting(most: Tensor):  # noqa: ANN202 - a hook, of torch's own type
    """Return a hook that keeps the most that goes into a module, by column."""

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        told = inputs[0].abs().flatten(0, -2).amax(0)
        torch.maximum(most, told, out=most)

    return note


class Exported(nn.Module):
    """One prompt, some models: what ONNX Runtime runs. Takes the network over.

    The same numbers in few operations of shapes that are known beforehand: as `Layer` has them,
    for any batch, a sixth of the time goes into turning and measuring what is small.
    """

    def __init__(self, net: Net, most: Reach | None = None) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("before", None if most is None else _drawn_in(most.before))
        self.register_buffer("within", None if most is None else _drawn_in(most.within))
        size = net.shape.width // net.shape.heads
        with torch.no_grad():
            for number, layer in enumerate(net.layers):
                # What queries are scaled by, once and for all.
                layer.qkv.weight[: net.shape.width] *= size**-0.5
                layer.qkv.bias[: net.shape.width] *= size**-0.5
                if most is not None:
                    layer.up.weight /= self.before[number]
                    layer.down.weight /= self.within[number]

    def forward(  # noqa: PLR0913, PLR0917 - the inputs of the graph
        self,
        ids: Tensor,
        positions: Tensor,
        opinions: Tensor,
        counts: Tensor,
        models: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """Return [N, SPOKEN]; ids [S, 8], positions [S], opinions, counts, models [N], rows."""
        net = self.net
        x = net.embed(ids, positions)
        for number, layer in enumerate(net.layers):
            x = self._through(layer, x, number)  # type: ignore[arg-type]  # ModuleList
        joined = torch.cat((x.mean(0), x[0], opinions, counts))[None]
        prompt = torch.cat((net.prompt(joined), opinions[None]), -1)
        return net.say(prompt.expand(models.shape[0], -1), models, rows)

    def _through(self, layer: Layer, x: Tensor, number: int) -> Tensor:
        """Return [S, W] of [S, W]."""
        width, heads = self.net.shape.width, layer.heads
        parts = layer.qkv(x).reshape(-1, 3 * heads, width // heads).transpose(0, 1)
        q, k, v = parts.split(heads)
        seen = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        x = layer.norm1(x + layer.out(seen.transpose(0, 1).reshape(-1, width)))
        if self.before is None:
            return layer.norm2(x + layer.down(functional.gelu(layer.up(x))))
        inner = functional.gelu(layer.up(x * self.before[number]))
        return layer.norm2(x + layer.down(inner * self.within[number]))


def _drawn_in(most: Tensor) -> Tensor:
    """Return what to multiply numbers by [L, N], so that none goes far beyond the others."""
    usual = most.quantile(_USUAL, -1, keepdim=True)
    return (usual / most.clamp(min=1e-6)).clamp(max=1.0)


def export(net: Net, most: Reach | None = None) -> bytes:
    """Return the network as ONNX."""
    shape = net.shape
    exported = Exported(net, most).eval()
    example = (
        torch.ones(7, WIDTH, dtype=torch.long),
        torch.arange(7),
        torch.zeros(OPINIONS + shape.kin),
        torch.zeros(COUNTED),
        torch.zeros(2, dtype=torch.long),
        torch.zeros(2, ROW),
    )
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a trace that only ever sees one prompt
        torch.onnx.export(
            exported,
            example,
            buffer,
            input_names=["ids", "positions", "opinions", "counts", "models", "rows"],
            output_names=["said"],
            dynamic_axes={
                "ids": {0: "S"},
                "positions": {0: "S"},
                "models": {0: "N"},
                "rows": {0: "N"},
            },
            dynamo=False,
        )
    plain = onnx.load_model_from_string(buffer.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        quantize_dynamic(
            plain,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        return path.read_bytes()
