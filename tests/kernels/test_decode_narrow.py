# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)
"""Decode's Gluon kernel for up to 32 rows: Triton's interpreter does not run Gluon."""

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.decode import (
    DecodeConfig,
    decode_config,
    decode_plan,
    paged_decode,
)
from forebay.kernels.attention.decode_settings import fitted
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import (
    DEVICE,
    Case,
    assert_close,
    binary_trees,
    dequantised,
    guarded_outputs,
    make_case,
    quantise_cache,
)

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


CACHES = {"16 bit": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
caches = pytest.mark.parametrize("kv", CACHES)


def stored(case: Case, kv: str, layout: str = "side_by_side") -> Case:
    """Return the case with its cache as kv says, and NaN wherever nothing was written.

    Scales lie side by side for a head, or for a slot.
    """
    dtype = CACHES[kv]
    if dtype is None:
        return case
    small = quantise_cache(case.cache, dtype)
    made: list[Any] = []
    for payload, scale, was in (
        (small.key, small.key_scale, case.cache.key),
        (small.value, small.value_scale, case.cache.value),
    ):
        assert scale is not None
        unused = was.isnan().any(-1)
        junk = torch.full_like(payload.view(torch.int8), 0x7F).view(dtype)  # of e4m3 that is NaN
        made.append(torch.where(unused[..., None], junk.float(), payload.float()).to(dtype))
        scales = scale.masked_fill(unused, math.nan)
        if layout == "side_by_side":
            scales = scales.transpose(1, 2).contiguous().transpose(1, 2)
        made.append(scales)
    key, key_scale, value, value_scale = made
    if layout == "side_by_side":
        both = torch.cat([key.view(torch.int8), value.view(torch.int8)], -1).transpose(1, 2)
        both = both.contiguous().transpose(1, 2).view(dtype)
        key, value = both.split(key.shape[3], -1)
    cache = replace(small, key=key, value=value, key_scale=key_scale, value_scale=value_scale)
    return replace(case, cache=cache)


def plain(cache: PagedCache) -> PagedCache:
    """Return what a cache stands for."""
    return dequantised(cache) if cache.is_quantised else cache


def settings(rows: int, **changes: Any) -> DecodeConfig:
    """Return settings that run the kernel with up to that many rows."""
    made = DecodeConfig(16 if rows <= 16 else 32, 64, 4, 3, 2, min_tokens=64, hopper=64)
    return replace(made, **({"hopper_stages": 3} | changes))


def check(case: Case, rule: Rule | None = None, **options: Any) -> None:
    """Run into a poisoned output between guard bands, twice, and compare."""
    before = None
    for _ in range(2):
        with guarded_outputs(case) as (out, lse):
            paged_decode(
                query=case.query, cache=case.cache, max_seq_len=case.max_seq_len,
                cu_query=case.cu_query, max_query_len=case.max_query_len, rule=rule, out=out,
                lse=lse, **options,
            )  # fmt: skip
        assert before is None or torch.equal(out, before), "two runs differ"
        before = out
    want, want_lse = attention_reference(
        query=case.query, cache=plain(case.cache), cu_query=case.cu_query, rule=rule
    )
    assert_close(out, want, case.query.dtype, (lse, want_lse))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads"),
    [(16, 8, 2), (32, 32, 8), (64, 3, 1), (128, 2, 2), (256, 16, 1), (16, 7, 1)],
    ids=str,
)
@pytest.mark.parametrize(
    ("dim", "dtype", "layout"),
    [
        (128, torch.bfloat16, "side_by_side"),
        (64, torch.float16, "interleaved"),
        (128, torch.float16, "separate"),
    ],
    ids=["side by side", "64 dims", "separate"],
)
@pytest.mark.parametrize("new", [1, 2, 4])
def test_it_over_pages_groups_and_dims(
    page: int, heads: int, kv_heads: int, dim: int, dtype: Any, layout: str, new: int
) -> None:
    rows = heads // kv_heads * new
    if rows > 32:
        pytest.skip("too many rows")
    case = make_case(
        seq_lens=[300, 157, new, 1033, 64], query_lens=new, heads=heads, kv_heads=kv_heads,
        dim=dim, page=page, dtype=dtype, layout=layout,
    )  # fmt: skip
    for policy in ("occupancy", "balanced", "fixed", "mission"):
        check(case, config=settings(rows), policy=policy)
        check(case, config=settings(rows, fused=99), policy=policy)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kv", ["int8", "fp8"])
@pytest.mark.parametrize("layout", ["side_by_side", "separate"])
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads"),
    [(16, 8, 2), (32, 32, 8), (64, 3, 1), (128, 16, 2), (256, 2, 2), (16, 7, 1)],
    ids=str,
)
@pytest.mark.parametrize("new", [1, 2, 4])
def test_8_bit_over_pages_and_groups(
    kv: str, layout: str, page: int, heads: int, kv_heads: int, new: int
) -> None:
    case = make_case(
        seq_lens=[300, 157, new, 1033, 64], query_lens=new, heads=heads, kv_heads=kv_heads,
        dim=128, page=page, dtype=torch.float16 if page == 32 else torch.bfloat16, csr=page == 64,
    )  # fmt: skip
    case = stored(case, kv, layout)
    for policy in ("occupancy", "balanced"):
        for fused in (4, 99):
            check(case, config=settings(heads // kv_heads * new, fused=fused), policy=policy)


@pytest.mark.gpu
@needs_gpu
@caches
@pytest.mark.parametrize(("tile", "stages", "resident"), [(64, 6, 1), (64, 2, 2), (128, 3, 1)])
@pytest.mark.parametrize("new", [1, 3, 5])
def test_it_over_tiles_and_stages(kv: str, tile: int, stages: int, resident: int, new: int) -> None:
    case = make_case(
        seq_lens=[4000, 8, 700, 129, 2000], query_lens=new, heads=48, kv_heads=8, dim=128,
        dtype=torch.bfloat16, layout="side_by_side",
    )  # fmt: skip
    case = stored(case, kv)
    config = settings(6 * new, hopper=tile, hopper_stages=stages, hopper_resident=resident, fused=8)
    for policy in ("occupancy", "balanced"):
        check(case, config=config, policy=policy)


@pytest.mark.gpu
@needs_gpu
@caches
@pytest.mark.parametrize("fused", [0, 4, 99])
@pytest.mark.parametrize("nodes", [[8] * 5, [2] * 5, [8, 0, 1, 5, 3], [1, 0, 1, 0, 1]], ids=str)
def test_trees_and_ragged_queries(kv: str, nodes: list[int], fused: int) -> None:
    case = make_case(
        seq_lens=[nodes[0] + 4000, nodes[1], 700, 129, 2000], query_lens=nodes, heads=32,
        kv_heads=8, dim=128, dtype=torch.bfloat16, layout="side_by_side",
    )  # fmt: skip
    case = stored(case, kv)
    config = settings(4 * max(nodes), fused=fused)
    for rule in (None, Rule(tree=binary_trees(nodes))):
        for policy in ("occupancy", "balanced", "fixed"):
            check(case, rule, config=config, policy=policy)


@pytest.mark.gpu
@needs_gpu
@caches
@pytest.mark.parametrize("policy", ["occupancy", "balanced", "mission"])
@pytest.mark.parametrize("fused", [0, 99])
def test_more_programs_than_fit_at_a_time(kv: str, policy: str, fused: int) -> None:
    case = make_case(
        seq_lens=[900] * 20 + [4096] * 12, query_lens=1, heads=32, kv_heads=8, dim=128,
        dtype=torch.bfloat16, layout="side_by_side",
    )  # fmt: skip
    case = stored(case, kv)
    for _ in range(8):
        check(case, config=settings(4, fused=fused, hopper_resident=1), policy=policy)


@pytest.mark.gpu
@needs_gpu
@caches
def test_an_empty_sequence_gives_zeros(kv: str) -> None:
    case = make_case(
        seq_lens=[0, 200, 0], query_lens=2, heads=8, kv_heads=2, dim=128, dtype=torch.bfloat16
    )
    case = stored(case, kv)
    for policy in ("occupancy", "balanced"):
        check(case, config=settings(8), policy=policy)


@pytest.mark.gpu
@needs_gpu
@caches
def test_a_graph_captured_on_short_sequences_replays_on_long_ones(kv: str) -> None:
    case = make_case(
        seq_lens=[3000, 164, 777], query_lens=2, heads=32, kv_heads=8, dim=128,
        dtype=torch.bfloat16,
    )  # fmt: skip
    case = stored(case, kv)
    lens = case.cache.seq_lens.clone()
    shared: dict[str, Any] = {
        "query": case.query, "cache": case.cache, "max_query_len": 2, "config": settings(8),
    }  # fmt: skip
    outs = [torch.full_like(case.query, math.nan) for _ in range(2)]
    plan = decode_plan(**shared)

    def both() -> None:
        decode_plan(**shared, out=plan)
        paged_decode(**shared, max_seq_len=4096, out=outs[1])
        paged_decode(**shared, max_seq_len=4096, policy="balanced", plan=plan, out=outs[0])

    case.cache.seq_lens.fill_(2)
    both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    case.cache.seq_lens.copy_(lens)
    graph.replay()
    want, _ = attention_reference(query=case.query, cache=plain(case.cache))
    for out in outs:
        assert_close(out, want, torch.bfloat16)


def chosen(
    sequences: int,
    policy: str,
    *,
    page: int = 16,
    rule: Rule | None = None,
    dtype: Any = torch.bfloat16,
    new: int = 1,
) -> tuple[int, int]:
    """Return tile and stages of the Gluon kernel that an H200 would run; tile 0 for Triton's."""
    pool = torch.empty(64, page, 8, 128, dtype=dtype, device="meta")
    lens = torch.empty(sequences, dtype=torch.int32, device="meta")
    scale = torch.empty(64, page, 8, device="meta") if dtype.itemsize == 1 else None
    cache = PagedCache(pool, pool, lens, block_table=lens, key_scale=scale, value_scale=scale)
    query = torch.empty(sequences * new, 32, 128, dtype=torch.bfloat16, device="meta")
    config = decode_config(query=query, cache=cache, max_query_len=new)
    made = fitted(config, query, cache, rule=rule or Rule(), max_query_len=new, policy=policy)
    return made.hopper, made.hopper_stages


def test_it_runs_where_it_was_the_quicker() -> None:
    """A meta tensor stands for an H200; 8 programs a sequence on its 132 SMs."""
    for sequences, policy, tile in (
        (8, "occupancy", 64), (16, "occupancy", 64), (24, "occupancy", 0), (32, "occupancy", 64),
        (48, "occupancy", 0), (128, "occupancy", 64), (8, "balanced", 64), (24, "balanced", 64),
        (64, "balanced", 64), (128, "balanced", 0), (8, "fixed", 0), (8, "mission", 0),
    ):  # fmt: skip
        assert chosen(sequences, policy)[0] == tile, (sequences, policy)


def test_8_bit_runs_where_it_was_the_quicker() -> None:
    for sequences, policy, new, tile, stages in (
        (1, "occupancy", 1, 64, 3), (24, "occupancy", 1, 64, 3), (32, "occupancy", 1, 64, 3),
        (48, "occupancy", 1, 0, 3), (64, "occupancy", 1, 64, 3), (128, "occupancy", 1, 64, 3),
        (48, "balanced", 1, 64, 3), (64, "balanced", 1, 64, 3), (128, "balanced", 1, 64, 4),
        (1, "occupancy", 4, 64, 3), (8, "occupancy", 4, 0, 3), (32, "balanced", 4, 0, 3),
        (8, "occupancy", 8, 64, 3), (8, "fixed", 1, 0, 3), (8, "mission", 1, 0, 3),
    ):  # fmt: skip
        for dtype in (torch.int8, torch.float8_e4m3fn):
            seen = chosen(sequences, policy, dtype=dtype, new=new)
            assert seen == (tile, stages), (sequences, policy, new)


def test_small_pages_and_rules_stay_with_tritons_kernel() -> None:
    assert chosen(8, "occupancy", page=1)[0] == 0
    assert chosen(8, "occupancy", page=24)[0] == 0
    assert chosen(8, "occupancy", rule=Rule(window=512))[0] == 0
    assert chosen(8, "occupancy", rule=Rule(soft_cap=30.0))[0] == 0
    assert chosen(8, "occupancy", rule=Rule(tree=torch.empty(8, device="meta")))[0] == 64
