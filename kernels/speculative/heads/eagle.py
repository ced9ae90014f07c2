# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""EAGLE-1 and EAGLE-3 heads: one decoder layer that guesses the target's next state.

At place t a head gets a feature of place t and the embedding of token t + 1, and yields a state
from which token t + 2 is guessed, and which is the next step's feature. EAGLE-1: the feature is the
target's last normed state, logits come from the target's own LM head. EAGLE-3: three states of the
target, low, middle and high, are projected to one; the head has its own norm and LM head, over the
more frequent tokens only (`d2t`: how far each draft token's id lies below the target's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from forebay.kernels.speculative.checkpoint import (
    load_config,
    load_tensors,
    save_tensors,
    write_json,
)
from forebay.kernels.speculative.llama import (
    Attention,
    Layer,
    LlamaConfig,
    Mlp,
    RMSNorm,
    Rotary,
)

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.kernels.speculative.llama import Attend, Llama

__all__ = ["Eagle1Head", "Eagle3Head", "feature_layers"]


def feature_layers(layers: int) -> tuple[int, int, int]:
    """Layers after which EAGLE-3 takes states: engines use these unless told otherwise."""
    return (2, layers // 2, layers - 3)


class _Mid(nn.Module):
    """EAGLE-3's layer: token and feature are normed apart and attended from side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.self_attn = Attention(config, 2 * hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = Mlp(config)

    def forward(
        self, embeds: torch.Tensor, x: torch.Tensor, tables: Any, attend: Attend
    ) -> torch.Tensor:
        """Run it; the feature is what the residual carries."""
        both = torch.cat((self.input_layernorm(embeds), self.hidden_norm(x)), -1)
        x = x + self.self_attn(both, tables, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3Head(nn.Module):
    """Three features in, states and logits over the draft vocabulary out."""

    method = "eagle3"

    def __init__(self, config: LlamaConfig, draft_vocab: int, *, layers: int) -> None:
        super().__init__()
        self.config = config
        self.features = feature_layers(layers)
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Mid(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, draft_vocab, bias=False)
        self.register_buffer("d2t", torch.zeros(draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))
        self.rotary = Rotary(config)

    def choose_vocab(self, counts: torch.Tensor) -> None:
        """Keep the most frequent tokens by counts `[vocab]`; ties go to the lower id."""
        order = torch.sort(counts.cpu(), descending=True, stable=True)[1]
        kept = order[: len(self.d2t)].sort()[0]
        self.d2t.copy_(kept - torch.arange(len(kept)))
        self.t2d.zero_()
        self.t2d[kept.to(self.t2d.device)] = True

    def first_features(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Project the target's three states; the head's own outputs skip this."""
        return self.fc(torch.cat(states, -1))

    def forward(
        self, embeds: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Next states `[rows, tokens, hidden]`, which are the next step's features."""
        return self.midlayer(embeds, features, self.rotary(positions), attend)

    def logits(self, states: torch.Tensor, target: Llama | None = None) -> torch.Tensor:
        """Work out logits over the draft vocabulary; the target's LM head is not needed."""
        del target
        return self.lm_head(self.norm(states))

    def to_target(self, ids: torch.Tensor) -> torch.Tensor:
        """Turn draft ids into the target's."""
        return ids + self.d2t[ids]

    def save(self, folder: Path) -> None:
        """Write the layout that vLLM and SGLang load (their names for it are the same).

        The layers stand where vLLM looks first and SGLang does not look: it would add 1 to what it
        read, and is right by itself, because the layers are both engines' own. A vocabulary that is
        the target's whole one has no tables: vLLM from 0.32 on refuses them there.
        """
        config = self.config
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.state_dict()
        tables = {name: tensors.pop(name) for name in ("d2t", "t2d")}
        kept = {name: value.bfloat16() for name, value in tensors.items()}
        whole = len(self.d2t) == config.vocab_size
        save_tensors(folder / "model.safetensors", kept if whole else kept | tables)
        told = config.told(
            architectures=["LlamaForCausalLMEagle3"],
            num_hidden_layers=1,
            draft_vocab_size=len(self.d2t),
            target_hidden_size=config.hidden_size,
            tie_word_embeddings=False,
            eagle_aux_hidden_state_layer_ids=list(self.features),
            eagle_config={"use_aux_hidden_state": True},
        )
        write_json(folder / "config.json", told)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: str = "cpu") -> Eagle3Head:
        """Load what `save` wrote."""
        told, tensors = load_config(folder), load_tensors(folder)
        head = cls(LlamaConfig.of(told), told["draft_vocab_size"], layers=8)
        name = "eagle_aux_hidden_state_layer_ids"
        head.features = tuple(told.get(name) or told["eagle_config"][name])
        if len(head.d2t) == head.config.vocab_size:
            tensors = {"d2t": head.d2t, "t2d": head.t2d} | tensors
        head.load_state_dict(tensors, strict=True)
        return head.to(device=device, dtype=dtype).eval()


class Eagle1Head(nn.Module):
    """One feature in, the target's own LM head out."""

    method = "eagle"

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.features: tuple[int, ...] = ()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config, first_norm=False)])
        self.rotary = Rotary(config)

    def first_features(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Take the target's last normed state, as it is."""
        return states[-1]

    def forward(
        self, embeds: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Next states, which are the next step's features."""
        x = self.fc(torch.cat((embeds, features.to(embeds.dtype)), -1))
        return self.layers[0](x, self.rotary(positions), attend)

    def logits(self, states: torch.Tensor, target: Llama | None = None) -> torch.Tensor:
        """Run the target's LM head over guessed states."""
        assert target is not None
        return target.logits(states)

    def to_target(self, ids: torch.Tensor) -> torch.Tensor:
        """Return them: its ids are the target's."""
        return ids

    def save(self, folder: Path) -> None:
        """Write the layout that vLLM loads, and SGLang's into a folder `sglang` in it.

        SGLang finds its model by another name, and adds a bias to what `fc` gives.
        """
        kept = {name: value.bfloat16() for name, value in self.state_dict().items()}
        no_bias = torch.zeros(self.config.hidden_size, dtype=torch.bfloat16)
        for place, name, more in (
            (folder, "LlamaForCausalLM", {}),
            (folder / "sglang", "LlamaForCausalLMEagle", {"fc.bias": no_bias}),
        ):
            place.mkdir(parents=True, exist_ok=True)
            save_tensors(place / "model.safetensors", kept | more)
            told = self.config.told(architectures=[name], num_hidden_layers=1, bias=bool(more))
            write_json(place / "config.json", told)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: str = "cpu") -> Eagle1Head:
        """Load what `save` wrote."""
        head = cls(LlamaConfig.of(load_config(folder)))
        head.load_state_dict(load_tensors(folder), strict=True)
        return head.to(device=device, dtype=dtype).eval()
