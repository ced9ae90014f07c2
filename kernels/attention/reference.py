# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: PLR0913
# (signatures are those of the ops)
"""What each op means, in plain torch and double precision.

Slow on purpose: gathers pages by indexing, loops over sequences, keeps every score. Tests and
benchmarks compare against these, and they are the fallback on a CPU.
"""

import math

import torch

from .layout import PagedCache, Rope, Rule

__all__ = [
    "attention_reference",
    "gather_reference",
    "merge_reference",
    "mla_decode_reference",
    "write_reference",
]


def gather_reference(cache: PagedCache, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Collect one sequence's keys and values, `[tokens, kv heads, dim]` float64, dequantised."""
    length = int(cache.seq_lens[sequence])
    pages = -(-length // cache.page)
    if cache.block_table is not None:
        ids = cache.block_table[sequence, :pages]
    else:
        assert cache.indptr is not None
        assert cache.indices is not None
        start = int(cache.indptr[sequence])
        ids = cache.indices[start : start + pages]
    ids = ids.long()
    out: list[torch.Tensor] = []
    for payload, scale in ((cache.key, cache.key_scale), (cache.value, cache.value_scale)):
        rows = payload[ids].double()
        if scale is not None:
            rows = rows * scale[ids].double()[..., None]
        out.append(rows.flatten(0, 1)[:length])
    return out[0], out[1]


def _visible(rule: Rule, length: int, q_len: int, first: int, device: torch.device) -> torch.Tensor:
    keys = torch.arange(length, device=device)[None, :]
    rows = torch.arange(length - q_len, length, device=device)[:, None]
    if rule.tree is not None:
        node = (keys - (length - q_len)).clamp(min=0, max=63)
        bits = (rule.tree[first : first + q_len, None] >> node) & 1
        return (keys < length - q_len) | (bits == 1)
    visible = keys <= rows
    if rule.window:
        visible &= (keys > rows - rule.window) | (keys < rule.sink_tokens)
    return visible


def _rotated(rows: torch.Tensor, index: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotate rows `[tokens, ..., dim]` float64, each at its index."""
    shape = (len(index), *[1] * (rows.ndim - 2), -1)
    cos, sin = rope.cos[index].double().view(shape), rope.sin[index].double().view(shape)
    out = rows.clone()
    pairs = rope.dim // 2
    first = slice(0, rope.dim, 2) if rope.interleaved else slice(0, pairs)
    second = slice(1, rope.dim, 2) if rope.interleaved else slice(pairs, rope.dim)
    out[..., first] = rows[..., first] * cos - rows[..., second] * sin
    out[..., second] = rows[..., second] * cos + rows[..., first] * sin
    return out


def _rerope_scores(query: torch.Tensor, key: torch.Tensor, rule: Rule) -> torch.Tensor:
    """Rebuild for each row the cache that it sees, numbered from 0; `[heads, group, rows, tokens]`.

    Keys `[tokens, heads, dim]` and query `[rows, heads, group, dim]` are not rotated yet.
    """
    assert rule.rope is not None
    scores = key.new_zeros((*query.shape[1:3], len(query), len(key)))
    for row in range(len(query)):
        position = len(key) - len(query) + row
        sinks = range(min(rule.sink_tokens, position + 1))
        recent = range(max(position - rule.window + 1, len(sinks)), position + 1)
        seen = torch.tensor([*sinks, *recent], device=key.device)
        index = torch.arange(len(seen), device=key.device)
        keys = _rotated(key[seen], index, rule.rope)
        q = _rotated(query[row : row + 1], index[-1:], rule.rope)[0]
        scores[:, :, row, seen] = torch.einsum("hgd,nhd->hgn", q, keys)
    return scores


def attention_reference(
    *,
    query: torch.Tensor,
    cache: PagedCache,
    cu_query: torch.Tensor | None = None,
    scale: float | None = None,
    rule: Rule | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with each sequence's last tokens as queries, `[tokens, heads, dim]` float64 and lse.

    cu_query `[sequences + 1]` says which rows of query belong to which sequence; without it each
    sequence has the same number. Serves decode, verify, tree and prefill alike.
    """
    rule = rule or Rule()
    tokens, heads, dim = query.shape
    sequences = cache.seq_lens.shape[0]
    scale = dim**-0.5 if scale is None else scale
    group = heads // cache.kv_heads
    out = torch.zeros(tokens, heads, cache.value.shape[3], dtype=torch.float64, device=query.device)
    lse = torch.full((tokens, heads), -math.inf, dtype=torch.float64, device=query.device)
    for b in range(sequences):
        each = tokens // sequences
        first, last = (
            (b * each, b * each + each)
            if cu_query is None
            else (int(cu_query[b]), int(cu_query[b + 1]))
        )
        length = int(cache.seq_lens[b])
        if length == 0 or first == last:
            continue
        key, value = gather_reference(cache, b)
        q = query[first:last].double().unflatten(1, (cache.kv_heads, group))
        if rule.rope is not None:
            scores = _rerope_scores(q, key, rule) * scale
        else:
            scores = torch.einsum("qhgd,nhd->hgqn", q, key) * scale
        if rule.soft_cap:
            scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
        hidden = ~_visible(rule, length, last - first, first, query.device)
        scores = scores.masked_fill(hidden, -math.inf)
        norm = torch.logsumexp(scores, -1)
        if rule.sinks is not None:
            sinks = rule.sinks.double().unflatten(0, (cache.kv_heads, group))[..., None]
            norm = torch.logaddexp(norm, sinks)
        weights = torch.exp(scores - norm[..., None]).nan_to_num(0.0)
        got = torch.einsum("hgqn,nhd->qhgd", weights, value)
        out[first:last] = got.flatten(1, 2)
        lse[first:last] = norm.permute(2, 0, 1).flatten(1, 2)
    return out, lse


def mla_decode_reference(
    *,
    query: torch.Tensor,
    latent: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    latent_dim: int = 512,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Absorbed MLA: keys are whole rows of `latent` `[pages, slots, 576]`, values their start."""
    key = latent[:, :, None, :]
    cache = PagedCache(key, key[..., :latent_dim], seq_lens, block_table)
    return attention_reference(query=query, cache=cache, scale=scale)


def merge_reference(*, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge states over dim 0, the parts: outs end in `[heads, dim]`, lses in `[heads]`."""
    lses = lses.double()
    lse = torch.logsumexp(lses, 0)
    weights = torch.exp(lses - lse).nan_to_num(0.0)
    outs = torch.where(weights[..., None] == 0, 0.0, outs.double())
    return (weights[..., None] * outs).sum(0), lse


def write_reference(
    *,
    rows: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scale: torch.Tensor | None = None,
) -> None:
    """Store rows `[tokens, kv heads, dim]` at slots of one cache; slot < 0 stores nothing.

    With scale `[pages, slots, kv heads]` the payload is int8 or e4m3, quantised per token and head.
    """
    page = cache.shape[1]
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        row = rows[token].float()
        if scale is not None:
            top = 127.0 if cache.dtype == torch.int8 else 448.0
            amount = (row.abs().amax(-1) / top).clamp(min=1e-10)
            scale[slot // page, slot % page] = amount
            row = row / amount[:, None]
            row = row.round() if cache.dtype == torch.int8 else row.clamp(-448, 448)
        cache[slot // page, slot % page] = row.to(cache.dtype)
