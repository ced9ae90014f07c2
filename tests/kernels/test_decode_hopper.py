# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)
"""Decode's Gluon kernel, for more than 32 rows: Triton's interpreter does not run Gluon."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.decode import DecodeConfig, decode_config, decode_plan, paged_decode
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import (
    DEVICE,
    Case,
    assert_close,
    binary_trees,
    guarded_outputs,
    make_case,
)

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
ONE = DecodeConfig(64, 64, 4, 1, 2, hopper=64, hopper_stages=3)
TWO = DecodeConfig(128, 64, 8, 1, 1, hopper=128, hopper_stages=2)


def check(case: Case, rule: Rule | None = None, **options: Any) -> None:
    """Run into a poisoned output between guard bands, and compare."""
    with guarded_outputs(case) as (out, lse):
        paged_decode(
            query=case.query, cache=case.cache, max_seq_len=case.max_seq_len,
            cu_query=case.cu_query, max_query_len=case.max_query_len, rule=rule, out=out, lse=lse,
            **options,
        )  # fmt: skip
    want, want_lse = attention_reference(
        query=case.query, cache=case.cache, cu_query=case.cu_query, rule=rule
    )
    assert_close(out, want, case.query.dtype, (lse, want_lse))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads"),
    [(1, 8, 2), (16, 8, 2), (64, 3, 1), (128, 2, 2), (256, 40, 1)],
    ids=str,
)
@pytest.mark.parametrize(
    ("dim", "dtype", "config"),
    [(128, torch.bfloat16, TWO), (64, torch.float16, TWO), (128, torch.float16, ONE)],
    ids=["two groups", "64 dims", "one group"],
)
@pytest.mark.parametrize("tree", [False, True], ids=["causal", "tree"])
def test_it_over_pages_groups_and_dims(
    page: int, heads: int, kv_heads: int, dim: int, dtype: Any, config: DecodeConfig, *, tree: bool
) -> None:
    lens = [64, 30, 1, 33, 64]
    case = make_case(
        seq_lens=[300, 157, 1, 1033, 64], query_lens=lens, heads=heads, kv_heads=kv_heads,
        dim=dim, page=page, dtype=dtype, csr=page == 1,
    )  # fmt: skip
    for policy in ("occupancy", "balanced"):
        check(case, Rule(tree=binary_trees(lens)) if tree else None, config=config, policy=policy)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("policy", ["mission", "occupancy", "balanced", "fixed"])
@pytest.mark.parametrize("nodes", [[64] * 5, [16] * 5, [64, 0, 5, 33, 17]], ids=str)
def test_the_shipped_settings_over_every_cut(policy: str, nodes: list[int]) -> None:
    case = make_case(
        seq_lens=[nodes[0] + 4000, nodes[1], 700, 129, 2000], query_lens=nodes, heads=32,
        kv_heads=8, dim=128, dtype=torch.bfloat16, layout="side_by_side",
    )  # fmt: skip
    for rule in (None, Rule(tree=binary_trees(nodes))):
        check(case, rule, policy=policy)


@pytest.mark.gpu
@needs_gpu
def test_an_empty_sequence_of_many_rows_gives_zeros() -> None:
    for config in (ONE, TWO):
        case = make_case(
            seq_lens=[0, 200], query_lens=32, heads=8, kv_heads=2, dim=128, dtype=torch.bfloat16
        )
        check(case, config=config, policy="balanced")


@pytest.mark.gpu
@needs_gpu
def test_a_graph_captured_on_short_sequences_replays_on_long_ones() -> None:
    case = make_case(
        seq_lens=[3000, 164, 777], query_lens=64, heads=32, kv_heads=8, dim=128,
        dtype=torch.bfloat16,
    )  # fmt: skip
    lens = case.cache.seq_lens.clone()
    rule = Rule(tree=binary_trees([64] * 3))
    shared: dict[str, Any] = {"query": case.query, "cache": case.cache, "max_query_len": 64}
    out = torch.full_like(case.query, math.nan)
    plan = decode_plan(**shared, rule=rule)

    def one() -> None:
        decode_plan(**shared, rule=rule, out=plan)
        paged_decode(**shared, rule=rule, max_seq_len=4096, plan=plan, out=out, pdl=False)

    case.cache.seq_lens.fill_(64)
    one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    case.cache.seq_lens.copy_(lens)
    graph.replay()
    want, _ = attention_reference(query=case.query, cache=case.cache, rule=rule)
    assert_close(out, want, torch.bfloat16)


def test_the_shipped_settings_name_a_tile_of_a_gluon_kernel() -> None:
    """A meta tensor stands for an H200."""
    pool = torch.empty(64, 16, 8, 128, dtype=torch.bfloat16, device="meta")
    for batch, rows, tile in ((8, 1, 64), (8, 8, 64), (8, 16, 64), (8, 64, 128), (1, 64, 64)):
        lens = torch.empty(batch, dtype=torch.int32, device="meta")
        cache = PagedCache(pool, pool, lens, block_table=lens)
        query = torch.empty(batch * rows, 32, 128, dtype=torch.bfloat16, device="meta")
        config = decode_config(query=query, cache=cache, max_query_len=rows)
        assert config.hopper == tile
        fixed = decode_config(query=query, cache=cache, max_query_len=rows, policy="fixed")
        assert fixed.hopper == (128 if rows == 64 else 64)
