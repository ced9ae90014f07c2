# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402, FBT001
# (skip before importing what needs them; parameters of a test come by name)

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.decode import (
    DecodeConfig,
    Workspace,
    decode_config,
    decode_plan,
    paged_decode,
)
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import (
    DEVICE,
    DTYPES,
    Case,
    assert_close,
    dequantised,
    error,
    guarded_outputs,
    make_case,
    quantise_cache,
)

SMALL = DecodeConfig(block_m=16, block_n=32, num_warps=4, num_stages=2, resident=2)
POLICIES = ["mission", "occupancy", "balanced", "fixed"]


def decode(case: Case, **options: Any) -> tuple[Any, Any]:
    """Run ours into poisoned outputs with guard bands, and check the bands."""
    options = {"config": SMALL, "fixed_tokens": 64} | options
    with guarded_outputs(case) as (out, lse):
        paged_decode(
            query=case.query,
            cache=case.cache,
            max_seq_len=case.max_seq_len,
            cu_query=case.cu_query,
            max_query_len=case.max_query_len,
            out=out,
            lse=lse,
            **options,
        )
    return out, lse


def check(case: Case, rule: Rule | None = None, **options: Any) -> None:
    out, lse = decode(case, rule=rule, **options)
    want, want_lse = attention_reference(
        query=case.query, cache=case.cache, cu_query=case.cu_query, rule=rule
    )
    assert_close(out, want, case.query.dtype, (lse, want_lse))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", [1, 15, 16, 33, 129])
def test_each_policy_at_the_edges_of_a_page_and_a_tile(
    policy: str, length: int, dtype: Any
) -> None:
    check(make_case(seq_lens=[length, 0, 70], dtype=dtype, seed=length), policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", [511, 512, 513])
def test_each_policy_around_the_missions_threshold(policy: str, length: int) -> None:
    check(make_case(seq_lens=[length], heads=2, kv_heads=1, dim=32), policy=policy)


@pytest.mark.parametrize("page", [1, 16, 32, 64, 128])
@pytest.mark.parametrize("csr", [False, True], ids=["table", "csr"])
def test_every_page_size_in_both_index_modes(page: int, csr: bool) -> None:
    check(make_case(seq_lens=[45, 140], page=page, csr=csr, dim=32, seed=page))


@pytest.mark.parametrize("layout", ["side_by_side", "interleaved", "separate"])
def test_each_engines_storage_is_read_in_place(layout: str) -> None:
    check(make_case(seq_lens=[100, 31], layout=layout, shared_pages=1))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 1), (6, 2), (5, 1), (32, 2)], ids=str)
def test_every_group_of_query_heads(heads: int, kv_heads: int) -> None:
    check(make_case(seq_lens=[70, 5], heads=heads, kv_heads=kv_heads, dim=32))


@pytest.mark.parametrize("dim", [16, 80, 96, 128])
def test_a_dim_that_is_no_power_of_two(dim: int) -> None:
    check(make_case(seq_lens=[50], heads=4, kv_heads=2, dim=dim))


def test_fp32_is_computed_in_fp32() -> None:
    check(make_case(seq_lens=[90, 33], dtype=torch.float32, dim=32))


@pytest.mark.parametrize("policy", ["occupancy", "balanced"])
@pytest.mark.parametrize("sink_tokens", [0, 4])
@pytest.mark.parametrize("query_lens", [1, 3])
def test_a_window_with_and_without_sink_tokens(
    policy: str, sink_tokens: int, query_lens: int
) -> None:
    case = make_case(seq_lens=[150, 20, 47], query_lens=query_lens, page=16)
    check(case, Rule(window=40, sink_tokens=sink_tokens), policy=policy)


def test_tokens_outside_a_window_are_not_read() -> None:
    case = make_case(seq_lens=[200], page=32)
    assert case.cache.block_table is not None
    hidden = case.cache.block_table[0, :5].long()
    clean, _ = decode(case, rule=Rule(window=20))
    case.cache.key[hidden] = math.nan
    case.cache.value[hidden] = math.nan
    dirty, _ = decode(case, rule=Rule(window=20))
    assert torch.equal(clean, dirty)


def test_a_soft_cap() -> None:
    check(make_case(seq_lens=[70, 33]), Rule(soft_cap=5.0))


def test_a_sink_logit_per_head_counts_once_over_all_splits() -> None:
    sinks = torch.linspace(-2, 3, 8, device=DEVICE)
    check(make_case(seq_lens=[150, 33]), Rule(sinks=sinks), policy="fixed")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("query_lens", [2, 8, [1, 5, 0, 3]], ids=str)
def test_several_new_tokens_a_sequence_are_causal(policy: str, query_lens: Any) -> None:
    check(make_case(seq_lens=[70, 9, 40, 33], query_lens=query_lens, dim=32), policy=policy)


def random_tree(lens: list[int], seed: int = 0) -> Any:
    """Ancestor bits of random trees whose nodes are numbered parents first."""
    rng = torch.Generator().manual_seed(seed)
    bits: list[int] = []
    for count in lens:
        mine: list[int] = []
        for node in range(count):
            parent = int(torch.randint(-1, node, (1,), generator=rng)) if node else -1
            mine.append((mine[parent] if parent >= 0 else 0) | 1 << node)
        bits += mine
    return torch.tensor([b - (1 << 64) if b >= 1 << 63 else b for b in bits], device=DEVICE)


@pytest.mark.parametrize("policy", ["occupancy", "balanced"])
@pytest.mark.parametrize("nodes", [[5, 1, 8], [64], [17, 30]], ids=str)
def test_tree_masks_merged_over_a_batch(policy: str, nodes: list[int]) -> None:
    lens = [n + 37 + 11 * i for i, n in enumerate(nodes)]
    case = make_case(seq_lens=lens, query_lens=nodes, dim=32, heads=4, kv_heads=2)
    check(case, Rule(tree=random_tree(nodes)), policy=policy)


@pytest.mark.parametrize("policy", ["occupancy", "balanced"])
def test_many_rows_are_merged_some_at_a_time(policy: str) -> None:
    """From 2,048 rows on, some of them no token's, of a sequence cut and of one that is whole."""
    nodes = [64, 5] * 4
    case = make_case(seq_lens=[200, 6] * 4, query_lens=nodes, heads=4, kv_heads=1, dim=16)
    config = replace(SMALL, block_m=128, min_tokens=64, resident=8, fused=0)
    check(case, Rule(tree=random_tree(nodes)), policy=policy, config=config)


def test_a_tree_that_is_a_chain_equals_causal_order() -> None:
    case = make_case(seq_lens=[50, 33], query_lens=6)
    chain = torch.tensor([(2 << i) - 1 for i in range(6)] * 2, device=DEVICE)
    out, _ = decode(case, rule=Rule(tree=chain))
    want, _ = decode(case)
    assert error(out, want)[0] < 1e-3


@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("query_lens", [1, 4])
def test_an_8_bit_cache_is_as_exact_as_its_dequantised_self(kv: Any, query_lens: int) -> None:
    case = make_case(seq_lens=[70, 130], query_lens=query_lens, dim=64)
    plain, _ = attention_reference(query=case.query, cache=case.cache, cu_query=case.cu_query)
    case = replace(case, cache=quantise_cache(case.cache, kv))
    out, _ = decode(case)
    want, _ = attention_reference(
        query=case.query, cache=dequantised(case.cache), cu_query=case.cu_query
    )
    assert_close(out, want, case.query.dtype)
    assert error(out, plain)[0] < (1.5e-2 if kv == torch.int8 else 4e-2)


def test_the_same_inputs_give_the_same_bits() -> None:
    case = make_case(seq_lens=[140, 70])
    assert torch.equal(decode(case, policy="fixed")[0], decode(case, policy="fixed")[0])


@pytest.mark.parametrize("longest", [70, 500])
def test_fixed_splits_do_not_depend_on_the_rest_of_the_batch(longest: int) -> None:
    case = make_case(seq_lens=[240, longest, 33], dtype=torch.float32)
    assert case.cache.block_table is not None
    alone = replace(
        case,
        query=case.query[:1],
        cu_query=case.cu_query[:2],
        cache=replace(
            case.cache,
            seq_lens=case.cache.seq_lens[:1],
            block_table=case.cache.block_table[:1],
        ),
        max_seq_len=240,
    )
    together, lone = decode(case, policy="fixed"), decode(alone, policy="fixed")
    assert torch.equal(together[0][:1], lone[0])
    assert torch.equal(together[1][:1], lone[1])


def test_a_plan_is_reused_by_layers_and_rewritten_in_place() -> None:
    first, second = make_case(seq_lens=[140, 20, 0]), make_case(seq_lens=[1, 33, 97])
    plan = None
    for case in (first, second):
        plan = decode_plan(query=case.query, cache=case.cache, config=SMALL, out=plan)
        check(case, plan=plan)


def test_what_the_kernels_cannot_read_is_refused() -> None:
    case = make_case(seq_lens=[20], dim=24, heads=2, kv_heads=1, layout="separate")
    with pytest.raises(ValueError, match="multiples of 16"):
        decode(case)
    case = make_case(seq_lens=[20])
    with pytest.raises(ValueError, match="tree mask with a window"):
        decode(case, rule=Rule(window=4, tree=torch.ones(1, dtype=torch.int64)))
    with pytest.raises(ValueError, match="workspace is too small"):
        decode(
            make_case(seq_lens=[300]),
            policy="fixed",
            workspace=Workspace.allocate(1, 1, 8, 64, DEVICE),
        )


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("policy", ["occupancy", "balanced", "mission"])
def test_a_graph_captured_on_short_sequences_replays_on_long_ones(policy: Any) -> None:
    case = make_case(seq_lens=[3000, 100, 777], dim=128, dtype=torch.bfloat16)
    lens = case.cache.seq_lens.clone()
    workspace = Workspace.allocate(4096, 1, 8, 128, DEVICE)
    plan = decode_plan(query=case.query, cache=case.cache) if policy == "balanced" else None
    out = torch.full_like(case.query, math.nan)

    def step() -> None:
        if plan is not None:
            decode_plan(query=case.query, cache=case.cache, out=plan)
        paged_decode(
            query=case.query, cache=case.cache, max_seq_len=4096, policy=policy, plan=plan,
            workspace=workspace, out=out,
        )  # fmt: skip

    case.cache.seq_lens.fill_(1)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    case.cache.seq_lens.copy_(lens)
    graph.replay()
    want, _ = attention_reference(query=case.query, cache=case.cache)
    assert_close(out, want, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_cache_larger_than_32_bit_offsets() -> None:
    pages = 5 * (1 << 30) // (16 * 2 * 128 * 2 * 2)
    both = torch.empty(pages, 2, 16, 256, dtype=torch.bfloat16, device=DEVICE).transpose(1, 2)
    case = make_case(seq_lens=[100], kv_heads=2, dim=128, dtype=torch.bfloat16)
    cache = replace(case.cache, key=both[..., :128], value=both[..., 128:])
    assert cache.block_table is not None
    cache.block_table[0, :7] = torch.arange(pages - 7, pages)
    cache.key[-7:].normal_()
    cache.value[-7:].normal_()
    out = paged_decode(query=case.query, cache=cache, max_seq_len=100)
    assert_close(out, attention_reference(query=case.query, cache=cache)[0], torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_sequence(policy: str) -> None:
    case = make_case(
        seq_lens=[100001, 4096, 4095], heads=32, kv_heads=8, dim=128, dtype=torch.bfloat16
    )
    check(case, policy=policy, config=None)


def test_a_crowded_gpu_takes_the_settings_of_its_own() -> None:
    """A meta tensor stands for an H200: 264 programs at a time, 8 to a sequence here."""

    def stages(sequences: int, new_tokens: int = 1) -> int:
        pool = torch.empty(64, 16, 8, 128, dtype=torch.bfloat16, device="meta")
        lens = torch.empty(sequences, dtype=torch.int32, device="meta")
        query = torch.empty(sequences * new_tokens, 32, 128, dtype=torch.bfloat16, device="meta")
        cache = PagedCache(pool, pool, lens, block_table=lens)
        return decode_config(query=query, cache=cache, max_query_len=new_tokens).num_stages

    assert [stages(n) for n in (1, 32, 49, 50, 128)] == [3, 3, 3, 4, 4]
    assert stages(128, new_tokens=8) == 3
