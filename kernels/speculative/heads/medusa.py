# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Medusa heads: head i guesses the token i + 2 places on from the target's last state alone.

Each is a residual block of one or several layers that starts as the identity, and a linear layer
that starts as the target's LM head, so an untrained head repeats the target's next token. `tied`
heads keep the target's LM head for that: less to learn by heart, where there is little text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from forebay.kernels.speculative.checkpoint import (
    load_config,
    load_tensors,
    save_tensors,
    write_json,
)

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.kernels.speculative.llama import Llama

__all__ = ["MedusaHeads"]


class MedusaHeads(nn.Module):
    """Logits of several places ahead from one state."""

    method = "medusa"
    features: tuple[int, ...] = ()

    def __init__(
        self, hidden: int, vocab: int, heads: int, *, layers: int = 1, tied: bool = False
    ) -> None:
        super().__init__()
        self.tied = tied
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
            for _ in range(heads)
        )
        count = 1 if tied else heads
        self.lm_heads = nn.ModuleList(nn.Linear(hidden, vocab, bias=False) for _ in range(count))
        if tied:
            self.lm_heads.requires_grad_(False)

    @classmethod
    def beside(
        cls, target: Llama, heads: int, *, layers: int = 1, tied: bool = False
    ) -> MedusaHeads:
        """Make untrained heads for a target."""
        config = target.config
        made = cls(config.hidden_size, config.vocab_size, heads, layers=layers, tied=tied)
        for layer in made.blocks.parameters():
            nn.init.zeros_(layer)
        for head in made.lm_heads:
            head.weight.data.copy_(target.lm_head.weight)
        return made

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Logits `[..., vocab]` of each head for states `[..., hidden]`."""
        return [self._lm_head(i)(_through(block, hidden)) for i, block in enumerate(self.blocks)]

    def _lm_head(self, head: int) -> nn.Module:
        return self.lm_heads[0 if self.tied else head]

    def save(self, folder: Path) -> None:
        """Write vLLM's layout (0.26; 0.33 has no Medusa, nor has SGLang)."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for i, block in enumerate(self.blocks):
            for j, layer in enumerate(block):
                tensors[f"blocks.{i}.layers.{j}.weight"] = layer.weight.bfloat16()
        for i, head in enumerate(self.lm_heads):
            tensors[f"lm_heads.{i}.weight"] = head.weight.bfloat16()
        save_tensors(folder / "model.safetensors", tensors)
        vocab, hidden = self.lm_heads[0].weight.shape
        told = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": hidden,
            "vocab_size": vocab,
            "num_heads": len(self.blocks),
            "num_hidden_layers": len(self.blocks[0]),
            "original_lm_head": self.tied,
            "torch_dtype": "bfloat16",
        }
        write_json(folder / "config.json", told)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: str = "cpu") -> MedusaHeads:
        """Load what `save` wrote."""
        told, tensors = load_config(folder), load_tensors(folder)
        made = cls(
            told["hidden_size"],
            told["vocab_size"],
            told["num_heads"],
            layers=told.get("num_hidden_layers", 1),
            tied=told.get("original_lm_head", False),
        )
        for i, block in enumerate(made.blocks):
            for j, layer in enumerate(block):
                layer.weight.data.copy_(tensors[f"blocks.{i}.layers.{j}.weight"])
        for i, head in enumerate(made.lm_heads):
            head.weight.data.copy_(tensors[f"lm_heads.{i}.weight"])
        return made.to(device=device, dtype=dtype).eval()


def _through(block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    for layer in block.children():
        hidden = hidden + F.silu(layer(hidden))
    return hidden
