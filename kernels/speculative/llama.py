# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""A small Llama in plain torch: the target of the reference engine and of heads' training.

Parameters carry Hugging Face's names, so that a checkpoint loads as it is. Attention is a callable
that each caller brings (`causal` below, a cache in reference/, unrolled steps in training): it gets
query, key and value `[rows, tokens, heads, dim]`, after the rotary embedding, and returns the
query's shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from .checkpoint import load_config, load_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

__all__ = ["Layer", "Llama", "LlamaConfig", "RMSNorm", "Rotary", "causal", "load_llama"]


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shape of a Llama; names as in its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048

    @classmethod
    def of(cls, told: dict[str, Any]) -> LlamaConfig:
        """Take what is needed from a config.json; raises ValueError for what this cannot run."""
        rope = told.get("rope_parameters") or told.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "linear") or float(rope.get("factor", 1.0)) != 1.0:
            raise ValueError(f"rotary embeddings of type '{kind}' are not supported")
        if told.get("attention_bias") or told.get("mlp_bias"):
            raise ValueError("a Llama with biases is not supported")
        needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        for name in (*needed, "num_attention_heads"):
            if not isinstance(told.get(name), int):
                raise ValueError(f"the model's config.json has no number '{name}'")  # noqa: TRY004 - a value
        heads = told["num_attention_heads"]
        return cls(
            vocab_size=told["vocab_size"],
            hidden_size=told["hidden_size"],
            intermediate_size=told["intermediate_size"],
            num_hidden_layers=told["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=told.get("num_key_value_heads") or heads,
            head_dim=told.get("head_dim") or told["hidden_size"] // heads,
            rms_norm_eps=told.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta") or told.get("rope_theta", 10000.0),
            tie_word_embeddings=told.get("tie_word_embeddings", False),
            max_position_embeddings=told.get("max_position_embeddings", 2048),
        )

    def told(self, **more: Any) -> dict[str, Any]:
        """Write it as a config.json of Hugging Face's."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            **{name: getattr(self, name) for name in self.__slots__},
            **more,
        }


class RMSNorm(nn.Module):
    """x / rms(x) * weight, in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm over the last dim."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight.to(x.dtype)


class Rotary(nn.Module):
    """Tables of the rotary embedding, halves of a head turned against each other."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device="cpu")
        # No buffer: a model that is turned to bf16 must not round its angles.
        self._rates = {torch.device("cpu"): config.rope_theta ** -(steps / config.head_dim)}

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, `[rows, tokens, 1, dim / 2]`, of positions `[rows, tokens]`."""
        device = positions.device
        if device not in self._rates:
            self._rates[device] = self._rates[torch.device("cpu")].float().to(device)
        angles = positions[..., None] * self._rates[device]
        return angles.cos()[..., None, :], angles.sin()[..., None, :]


def turn(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply the rotary embedding to `[rows, tokens, heads, dim]`."""
    cos, sin = tables
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    """Projections around an attention that the caller brings."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.dim = config.head_dim
        q, kv = (n * self.dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(inputs, q, bias=False)
        self.k_proj = nn.Linear(inputs, kv, bias=False)
        self.v_proj = nn.Linear(inputs, kv, bias=False)
        self.o_proj = nn.Linear(q, config.hidden_size, bias=False)

    def forward(
        self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        """Attend from and to the tokens of x; what else is seen is the caller's business."""
        heads = (-1, self.dim)
        q = turn(self.q_proj(x).unflatten(-1, heads), tables)
        k = turn(self.k_proj(x).unflatten(-1, heads), tables)
        v = self.v_proj(x).unflatten(-1, heads)
        return self.o_proj(attend(q, k, v).flatten(-2).to(x.dtype))


class Mlp(nn.Module):
    """down(silu(gate) * up)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer; an EAGLE-1 head has one without the first norm."""

    def __init__(self, config: LlamaConfig, *, first_norm: bool = True) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps) if first_norm else nn.Identity()
        self.self_attn = Attention(config, hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = Mlp(config)

    def forward(
        self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        """Run it on `[rows, tokens, hidden]`."""
        x = x + self.self_attn(self.input_layernorm(x), tables, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The whole model, up to its last norm; `logits` is apart, since not every row needs them."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = Rotary(config)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Callable[[int], Attend],
        *,
        features: Sequence[int] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the last normed states and the states after so many layers as `features` names.

        tokens, positions `[rows, tokens]`; attend gives each layer its attention.
        """
        x = self.embed_tokens(tokens)
        tables = self.rotary(positions)
        kept = [x] if 0 in features else []
        for number, layer in enumerate(self.layers):
            x = layer(x, tables, attend(number))
            if number + 1 in features:
                kept.append(x)
        return self.norm(x), kept

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[..., vocab]` of normed states."""
        return self.lm_head(hidden)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend over the same tokens alone, each to those before it and itself."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


def load_llama(folder: Path, *, dtype: torch.dtype, device: str | torch.device = "cpu") -> Llama:
    """Load a Llama checkpoint; raises ValueError for another architecture or missing tensors."""
    told = load_config(folder)
    if told.get("model_type") != "llama":
        raise ValueError(f"{folder} is a '{told.get('model_type')}', only llama is supported")
    config = LlamaConfig.of(told)
    tensors = {name.removeprefix("model."): value for name, value in load_tensors(folder).items()}
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"]
    with torch.device("meta"):
        model = Llama(config)
    kept = {
        name: value.to(device=device, dtype=dtype)
        for name, value in tensors.items()
        if "rotary_emb" not in name
    }
    missing, unknown = model.load_state_dict(kept, strict=False, assign=True)
    if missing or unknown:
        raise ValueError(f"{folder}: tensors missing {missing[:3]}, unknown {unknown[:3]}")
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    return model.eval().requires_grad_(requires_grad=False)
