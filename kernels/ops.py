# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: FBT001, FBT002, PLR0913, PLR0917
# (an operator's schema is flat)
"""The ops as `torch.ops.forebay.*`, opaque to torch.compile and graph capture.

Importing this module registers them. A custom op takes flat arguments, so PagedCache and Rule are
spelled out; results go to tensors that the caller owns, which the schema declares as mutated.
"""

import torch

from ._common.host import check
from .attention.decode import paged_decode
from .attention.kv_write import write_cache
from .attention.layout import PagedCache, Rope, Rule
from .attention.merge import merge_states
from .attention.mla import mla_decode
from .attention.prefill import paged_prefill
from .sampling.rejection import rejection_sample

__all__ = ["decode", "merge", "mla", "prefill", "reject", "write"]


@torch.library.custom_op("forebay::write_cache", mutates_args=("key_cache", "value_cache"))
def write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Store 16-bit keys and values, see `write_cache`."""
    write_cache(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slots=slots)


def _rope(cos: torch.Tensor | None, sin: torch.Tensor | None, interleaved: bool) -> Rope | None:
    check((cos is None) == (sin is None), "rope_cos and rope_sin go together")
    return None if cos is None or sin is None else Rope(cos, sin, interleaved)


@torch.library.custom_op("forebay::paged_decode", mutates_args=("out",))
def decode(
    out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    scale: float,
    max_query_len: int = 1,
    cu_query: torch.Tensor | None = None,
    tree: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    window: int = 0,
    sink_tokens: int = 0,
    soft_cap: float = 0.0,
    policy: str = "occupancy",
    rope_cos: torch.Tensor | None = None,
    rope_sin: torch.Tensor | None = None,
    rope_interleaved: bool = False,
) -> None:
    """Decode into `out`, see `paged_decode`."""
    paged_decode(
        query=query,
        cache=PagedCache(
            key_cache, value_cache, seq_lens, block_table,
            key_scale=key_scale, value_scale=value_scale,
        ),
        max_seq_len=max_seq_len,
        cu_query=cu_query,
        max_query_len=max_query_len,
        scale=scale,
        rule=Rule(
            window=window, sink_tokens=sink_tokens, soft_cap=soft_cap, tree=tree,
            rope=_rope(rope_cos, rope_sin, rope_interleaved),
        ),
        policy=policy,  # pyright: ignore[reportArgumentType] - a schema knows only str
        out=out,
    )  # fmt: skip


@torch.library.custom_op("forebay::paged_prefill", mutates_args=("out",))
def prefill(
    out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_query: torch.Tensor,
    scale: float,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    window: int = 0,
    sink_tokens: int = 0,
    soft_cap: float = 0.0,
    rope_cos: torch.Tensor | None = None,
    rope_sin: torch.Tensor | None = None,
    rope_interleaved: bool = False,
) -> None:
    """Prefill into `out`, see `paged_prefill`."""
    paged_prefill(
        query=query,
        cache=PagedCache(
            key_cache, value_cache, seq_lens, block_table,
            key_scale=key_scale, value_scale=value_scale,
        ),
        cu_query=cu_query,
        scale=scale,
        rule=Rule(
            window=window, sink_tokens=sink_tokens, soft_cap=soft_cap,
            rope=_rope(rope_cos, rope_sin, rope_interleaved),
        ),
        out=out,
    )  # fmt: skip


@torch.library.custom_op("forebay::mla_decode", mutates_args=("out",))
def mla(
    out: torch.Tensor,
    query: torch.Tensor,
    latent: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    scale: float,
    max_query_len: int = 1,
) -> None:
    """MLA decode into `out`, whose last dim is the latent's, see `mla_decode`."""
    mla_decode(
        query=query,
        latent=latent,
        seq_lens=seq_lens,
        block_table=block_table,
        max_seq_len=max_seq_len,
        scale=scale,
        max_query_len=max_query_len,
        latent_dim=out.shape[2],
        out=out,
    )


@torch.library.custom_op("forebay::merge_states", mutates_args=("out", "lse"))
def merge(
    out: torch.Tensor,
    lse: torch.Tensor,
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
) -> None:
    """Merge two states into `out` and `lse`, see `merge_states`."""
    merge_states(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b, out=out, lse=lse)


@torch.library.custom_op("forebay::rejection_sample", mutates_args=())
def reject(
    logits: torch.Tensor,
    draft: torch.Tensor,
    cu_draft: torch.Tensor,
    most: int,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    places: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafts, see `rejection_sample`."""
    return rejection_sample(
        logits=logits, draft=draft, cu_draft=cu_draft, most=most, temperature=temperature,
        seeds=seeds, places=places, draft_probs=draft_probs,
    )  # fmt: skip


@reject.register_fake
def _reject_shapes(
    logits: torch.Tensor,
    draft: torch.Tensor,
    cu_draft: torch.Tensor,
    most: int,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    places: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    del draft, temperature, seeds, places, draft_probs
    sequences = cu_draft.shape[0] - 1
    return (
        logits.new_empty((sequences, most + 1), dtype=torch.int32),
        logits.new_empty((sequences,), dtype=torch.int32),
    )


for _op in (write, decode, prefill, mla, merge):
    # Nothing is returned, so tracing has no shape to work out.
    _op.register_fake(lambda *_args, **_kwargs: None)
