# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: PLR0913, PLR0917
# (a case has many knobs)
"""Cases and comparisons for the kernels' tests and benchmarks.

A case is a paged cache with every trap set: shuffled pages, pages shared between sequences, a
partial last page, and NaN in each slot and page that no query may see.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from .attention.layout import PagedCache

__all__ = [
    "DEVICE",
    "DTYPES",
    "Case",
    "assert_close",
    "binary_trees",
    "dequantised",
    "error",
    "guarded_outputs",
    "make_case",
    "quantise_cache",
    "tolerance",
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies the bit patterns of bf16, so that type is for GPUs.
DTYPES = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]


@dataclass(frozen=True, slots=True)
class Case:
    """Queries for a paged cache; cu_query covers all of them."""

    query: torch.Tensor
    cache: PagedCache
    cu_query: torch.Tensor
    max_query_len: int
    max_seq_len: int


def _paged(
    pages: int, page: int, heads: int, dim: int, layout: str, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value views, `[pages, slots, heads, dim]`, over one engine's storage order."""
    if layout == "side_by_side":  # [pages, heads, slots, key then value]
        both = torch.full((pages, heads, page, 2 * dim), math.nan, dtype=dtype, device=device)
        both = both.transpose(1, 2)
        return both[..., :dim], both[..., dim:]
    if layout == "interleaved":  # [pages, 2, slots, heads, dim]
        both = torch.full((pages, 2, page, heads, dim), math.nan, dtype=dtype, device=device)
        return both[:, 0], both[:, 1]
    both = torch.full((2, pages, page, heads, dim), math.nan, dtype=dtype, device=device)
    return both[0], both[1]


def make_case(
    *,
    seq_lens: list[int],
    query_lens: list[int] | int = 1,
    heads: int = 8,
    kv_heads: int = 2,
    dim: int = 64,
    page: int = 16,
    dtype: torch.dtype = torch.float16,
    layout: str = "interleaved",
    csr: bool = False,
    shared_pages: int = 0,
    seed: int = 0,
    device: str = DEVICE,
) -> Case:
    """Build a case; the first shared_pages pages of every sequence are the same ones."""
    rng = torch.Generator(device=device).manual_seed(seed)
    if isinstance(query_lens, int):
        query_lens = [query_lens] * len(seq_lens)
    counts = [-(-n // page) for n in seq_lens]
    total = sum(counts) + 3
    key, value = _paged(total, page, kv_heads, dim, layout, dtype, device)
    order = torch.randperm(total, generator=rng, device=device)
    columns = max([*counts, 1]) + 2
    table = torch.full((len(seq_lens), columns), 2**30, dtype=torch.int32, device=device)
    used = 0
    for b, count in enumerate(counts):
        table[b, :count] = order[used : used + count]
        shared = min(shared_pages, count, counts[0])
        table[b, :shared] = table[0, :shared]
        used += count
    for b, length in enumerate(seq_lens):
        if length == 0:
            continue
        where = torch.arange(length, device=device)
        pages, slots = table[b, where // page].long(), where % page
        shape = (length, kv_heads, dim)
        key[pages, slots] = torch.randn(shape, generator=rng, device=device).to(dtype)
        value[pages, slots] = torch.randn(shape, generator=rng, device=device).to(dtype)
    cu = torch.zeros(len(seq_lens) + 1, dtype=torch.int32, device=device)
    cu[1:] = torch.tensor(query_lens, device=device).cumsum(0)
    query = torch.randn(int(cu[-1]), heads, dim, generator=rng, device=device).to(dtype)
    lens = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    cache = PagedCache(key, value, lens, table)
    if csr:
        indptr = torch.zeros(len(seq_lens) + 1, dtype=torch.int32, device=device)
        indptr[1:] = torch.tensor(counts, device=device).cumsum(0)
        flat = torch.cat([table[b, :count] for b, count in enumerate(counts)])
        cache = PagedCache(key, value, lens, indptr=indptr, indices=flat)
    return Case(query, cache, cu, max([*query_lens, 1]), max(seq_lens))


def binary_trees(counts: list[int], device: str = DEVICE) -> torch.Tensor:
    """Ancestor bits of trees, one after another, in which node i hangs under (i - 1) // 2."""
    bits: list[int] = []
    for count in counts:
        mine: list[int] = []
        for node in range(count):
            mine.append((mine[(node - 1) // 2] if node else 0) | 1 << node)
        bits += mine
    return torch.tensor([b - (1 << 64) if b >> 63 else b for b in bits], device=device)


def quantise_cache(cache: PagedCache, dtype: torch.dtype) -> PagedCache:
    """Quantise per token and head with plain torch; scales lie `[pages, heads, slots]`."""
    out: list[torch.Tensor] = []
    for payload in (cache.key, cache.value):
        x = payload.float().nan_to_num(0.0)
        top = 127.0 if dtype == torch.int8 else 448.0
        scale = (x.abs().amax(-1) / top).clamp(min=1e-10)
        y = (x / scale[..., None]).clamp(-top, top)
        y = y.round() if dtype == torch.int8 else y
        out += [y.to(dtype), scale.transpose(1, 2).contiguous().transpose(1, 2)]
    return replace(cache, key=out[0], value=out[2], key_scale=out[1], value_scale=out[3])


def dequantised(cache: PagedCache) -> PagedCache:
    """Return the same cache in fp32, for a reference of the kernel's error alone."""
    assert cache.key_scale is not None
    assert cache.value_scale is not None
    return replace(
        cache,
        key=cache.key.float() * cache.key_scale[..., None],
        value=cache.value.float() * cache.value_scale[..., None],
        key_scale=None,
        value_scale=None,
    )


def error(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Relative norm of the difference: over the whole tensor, and of the worst row (last dim)."""
    got, want = got.double(), want.double()
    whole = (got - want).norm() / want.norm().clamp(min=1e-30)
    norms = want.norm(dim=-1)
    floor = norms.mean().clamp(min=1e-30) * 1e-3
    rows = (got - want).norm(dim=-1) / norms.clamp(min=float(floor))
    return float(whole), float(rows.max())


def tolerance(dtype: torch.dtype) -> tuple[float, float, float]:
    """Whole tensor, worst row, and absolute lse, for inputs of this type."""
    return {
        torch.float32: (1e-5, 1e-4, 1e-5),
        torch.float16: (6e-4, 3e-3, 1e-4),
        torch.bfloat16: (4e-3, 1.5e-2, 1e-4),
    }[dtype]


@contextmanager
def guarded_outputs(case: Case) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a poisoned out and lse for a case; AssertionError where the rows beside out changed."""
    tokens, heads, dim = case.query.shape
    bands = torch.full((tokens + 2, heads, dim), 7.0, dtype=case.query.dtype, device=DEVICE)
    out = bands[1:-1].fill_(math.nan)
    yield out, torch.full((tokens, heads), math.nan, device=DEVICE)
    assert bool((bands[[0, -1]] == 7.0).all()), "wrote outside its output"


def assert_close(
    got: torch.Tensor,
    want: torch.Tensor,
    dtype: torch.dtype,
    lse: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Raise AssertionError unless out, and lse (got, want) when given, are within tolerance."""
    whole, worst, natural = tolerance(dtype)
    seen = error(got, want)
    assert seen[0] <= whole, f"whole tensor is off by {seen[0]:.2e}, allowed {whole:.0e}"
    assert seen[1] <= worst, f"worst row is off by {seen[1]:.2e}, allowed {worst:.0e}"
    if lse is not None:
        empty = torch.isneginf(lse[1])
        assert torch.equal(torch.isneginf(lse[0]), empty), "lse is -inf in the wrong rows"
        off = (lse[0].double() - lse[1]).masked_fill(empty, 0.0).abs().max()
        assert off <= natural, f"lse is off by {off:.2e}, allowed {natural:.0e}"
