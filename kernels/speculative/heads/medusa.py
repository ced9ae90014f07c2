# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Medusa heads: head i guesses the token i + 2 places on from the target's last state alone.

Each is a residual block that starts as the identity and a linear layer that starts as the target's
LM head, so an untrained head repeats the target's next token.
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

    def __init__(self, hidden: int, vocab: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(heads))
        self.lm_heads = nn.ModuleList(nn.Linear(hidden, vocab, bias=False) for _ in range(heads))

    @classmethod
    def beside(cls, target: Llama, heads: int) -> MedusaHeads:
        """Make untrained heads for a target."""
        made = cls(target.config.hidden_size, target.config.vocab_size, heads)
        for block, head in zip(made.blocks, made.lm_heads, strict=True):
            nn.init.zeros_(block.weight)
            head.weight.data.copy_(target.lm_head.weight)
        return made

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Logits `[..., vocab]` of each head for states `[..., hidden]`."""
        return [
            head(hidden + F.silu(block(hidden)))
            for block, head in zip(self.blocks, self.lm_heads, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write vLLM's layout (0.26; 0.33 has no Medusa, nor has SGLang)."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for i, (block, head) in enumerate(zip(self.blocks, self.lm_heads, strict=True)):
            tensors[f"blocks.{i}.layers.0.weight"] = block.weight.bfloat16()
            tensors[f"lm_heads.{i}.weight"] = head.weight.bfloat16()
        save_tensors(folder / "model.safetensors", tensors)
        vocab, hidden = self.lm_heads[0].weight.shape
        told = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": hidden,
            "vocab_size": vocab,
            "num_heads": len(self.blocks),
            "num_hidden_layers": 1,
            "torch_dtype": "bfloat16",
        }
        write_json(folder / "config.json", told)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: str = "cpu") -> MedusaHeads:
        """Load what `save` wrote."""
        told, tensors = load_config(folder), load_tensors(folder)
        made = cls(told["hidden_size"], told["vocab_size"], told["num_heads"])
        for i, (block, head) in enumerate(zip(made.blocks, made.lm_heads, strict=True)):
            block.weight.data.copy_(tensors[f"blocks.{i}.layers.0.weight"])
            head.weight.data.copy_(tensors[f"lm_heads.{i}.weight"])
        return made.to(device=device, dtype=dtype).eval()
