# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402, FBT001
# (skip before importing what needs them; parameters of a test come by name)

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.layout import Rule
from forebay.kernels.attention.prefill import PrefillConfig, paged_prefill
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import (
    DEVICE,
    DTYPES,
    Case,
    assert_close,
    dequantised,
    guarded_outputs,
    make_case,
    quantise_cache,
)

SMALL = PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)


def check(case: Case, rule: Rule | None = None, config: Any = SMALL, cache: Any = None) -> None:
    with guarded_outputs(case) as (out, lse):
        paged_prefill(
            query=case.query, cache=case.cache, cu_query=case.cu_query, rule=rule, config=config,
            out=out, lse=lse,
        )  # fmt: skip
    want, want_lse = attention_reference(
        query=case.query, cache=cache or case.cache, cu_query=case.cu_query, rule=rule
    )
    assert_close(out, want, case.query.dtype, (lse, want_lse))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("seq_lens", "query_lens"),
    [
        ([40], [40]),
        ([33, 100], [33, 30]),
        ([17, 64, 5], [1, 64, 2]),
        ([70, 20, 90], [8, 0, 9]),
    ],
    ids=str,
)
def test_chunks_with_and_without_a_cached_prefix(
    seq_lens: list[int], query_lens: list[int], dtype: Any
) -> None:
    check(make_case(seq_lens=seq_lens, query_lens=query_lens, dtype=dtype))


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("csr", [False, True], ids=["table", "csr"])
def test_every_page_size_in_both_index_modes(page: int, csr: bool) -> None:
    check(make_case(seq_lens=[50, 90], query_lens=[20, 11], page=page, csr=csr, dim=32))


@pytest.mark.parametrize("heads", [(2, 2), (3, 1), (12, 2), (16, 1)], ids=str)
def test_every_group_of_query_heads(heads: tuple[int, int]) -> None:
    case = make_case(seq_lens=[60], query_lens=[25], heads=heads[0], kv_heads=heads[1], dim=32)
    check(case)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(window=20),
        Rule(window=20, sink_tokens=4),
        Rule(window=9, sink_tokens=40),
        Rule(soft_cap=4.0),
    ],
    ids=["window", "sink and window", "sink past a tile", "soft cap"],
)
def test_the_rules(rule: Rule) -> None:
    check(make_case(seq_lens=[80, 45], query_lens=[40, 45], layout="side_by_side"), rule)


def test_a_sink_logit_per_head() -> None:
    rule = Rule(sinks=torch.linspace(-2, 3, 8, device=DEVICE))
    check(make_case(seq_lens=[50], query_lens=[20]), rule)


@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_an_8_bit_cache_is_as_exact_as_its_dequantised_self(kv: Any) -> None:
    case = make_case(seq_lens=[50, 70], query_lens=[50, 9])
    quantised = quantise_cache(case.cache, kv)
    check(replace(case, cache=quantised), cache=dequantised(quantised))


def test_a_tree_mask_is_refused() -> None:
    case = make_case(seq_lens=[20], query_lens=[3])
    with pytest.raises(ValueError, match="paged_decode"):
        check(case, Rule(tree=torch.ones(3, dtype=torch.int64, device=DEVICE)))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("page", [16, 64])
def test_a_long_chunk_with_the_shipped_configuration(page: int) -> None:
    case = make_case(
        seq_lens=[3000, 700, 9000], query_lens=[3000, 100, 513], heads=32, kv_heads=8, dim=128,
        page=page, dtype=torch.bfloat16,
    )  # fmt: skip
    check(case, config=None)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads"),
    [(1, 8, 2), (16, 8, 2), (16, 40, 1), (64, 3, 1), (128, 2, 2), (256, 8, 2)],
    ids=str,
)
@pytest.mark.parametrize(("dim", "dtype"), [(128, torch.bfloat16), (64, torch.float16)], ids=str)
@pytest.mark.parametrize(("tile", "stages"), [(64, 4), (128, 2)], ids=str)
def test_the_gluon_kernel_over_pages_groups_dims_and_chunks(
    page: int, heads: int, kv_heads: int, dim: int, dtype: Any, tile: int, stages: int
) -> None:
    case = make_case(
        seq_lens=[300, 129, 1, 700, 128], query_lens=[300, 2, 1, 0, 128], heads=heads,
        kv_heads=kv_heads, dim=dim, page=page, dtype=dtype, csr=page == 1,
    )  # fmt: skip
    check(case, config=PrefillConfig(128, 64, 8, 1, hopper=tile, hopper_stages=stages))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads", "chunk"),
    [(1, 40, 1, 905), (16, 32, 8, 3001), (64, 8, 2, 5000), (128, 32, 8, 1100)],
    ids=str,
)
@pytest.mark.parametrize(("dim", "dtype"), [(128, torch.bfloat16), (64, torch.float16)], ids=str)
def test_one_sequences_blocks_are_walked_by_as_many_programs_as_there_are_multiprocessors(
    page: int, heads: int, kv_heads: int, chunk: int, dim: int, dtype: Any
) -> None:
    """Two blocks a program, or more, the last turn not full."""
    case = make_case(
        seq_lens=[chunk + 77], query_lens=[chunk], heads=heads, kv_heads=kv_heads, dim=dim,
        page=page, dtype=dtype, csr=page == 1,
    )  # fmt: skip
    check(case, config=PrefillConfig(128, 64, 8, 1, hopper=128))
