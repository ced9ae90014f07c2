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

from forebay.kernels.attention.launch import gluon_kernel
from forebay.kernels.attention.mla import MlaConfig, hopper_kernel, mla_decode, mla_plan
from forebay.kernels.attention.reference import mla_decode_reference
from forebay.kernels.testing import DEVICE, DTYPES, assert_close

SMALL = MlaConfig(block_m=16, block_n=32, num_warps=4, num_stages=2, resident=1)


def check(
    *,
    lens: list[int],
    heads: int = 16,
    q: int = 1,
    page: int = 64,
    latent_dim: int = 64,
    rope: int = 16,
    dtype: Any = torch.float16,
    plan: bool = False,
    config: Any = SMALL,
) -> None:
    rng = torch.Generator(device=DEVICE).manual_seed(sum(lens))
    dim = latent_dim + rope
    counts = [-(-n // page) for n in lens]
    latent = torch.full((sum(counts) + 2, page, dim), math.nan, dtype=dtype, device=DEVICE)
    order = torch.randperm(latent.shape[0], generator=rng, device=DEVICE).int()
    table = torch.full((len(lens), max(counts) + 1), 2**30, dtype=torch.int32, device=DEVICE)
    used = 0
    for b, (count, length) in enumerate(zip(counts, lens, strict=True)):
        table[b, :count] = order[used : used + count]
        used += count
        at = torch.arange(length, device=DEVICE)
        rows = torch.randn(length, dim, generator=rng, device=DEVICE)
        latent[table[b, at // page].long(), at % page] = rows.to(dtype)
    seq_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    query = torch.randn(len(lens) * q, heads, dim, generator=rng, device=DEVICE).to(dtype)
    lse = torch.full((len(lens) * q, heads), math.nan, device=DEVICE)
    out = torch.full((len(lens) * q, heads, latent_dim), math.nan, dtype=dtype, device=DEVICE)
    options = {"max_query_len": q, "config": config}
    made = mla_plan(query=query, latent=latent, seq_lens=seq_lens, **options) if plan else None
    mla_decode(
        query=query, latent=latent, seq_lens=seq_lens, block_table=table, max_seq_len=max(lens),
        scale=0.1, latent_dim=latent_dim, plan=made, out=out, lse=lse, **options,
    )  # fmt: skip
    want, want_lse = mla_decode_reference(
        query=query, latent=latent, seq_lens=seq_lens, block_table=table, scale=0.1,
        latent_dim=latent_dim,
    )  # fmt: skip
    assert_close(out, want, dtype, (lse, want_lse))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("plan", [False, True], ids=["static", "planned"])
@pytest.mark.parametrize("lens", [[1], [31, 32, 33], [300, 0, 64]], ids=str)
def test_lengths_around_tiles_and_pages(lens: list[int], plan: bool, dtype: Any) -> None:
    check(lens=lens, plan=plan, dtype=dtype)


@pytest.mark.parametrize("page", [16, 32, 64])
def test_every_page_size(page: int) -> None:
    check(lens=[70, 33], page=page)


@pytest.mark.parametrize(("heads", "q"), [(16, 3), (128, 1), (5, 1), (32, 2)], ids=str)
def test_heads_and_new_tokens_fill_the_rows(heads: int, q: int) -> None:
    check(lens=[70, 33], heads=heads, q=q, latent_dim=32)


def test_the_gluon_kernel_is_left_alone_in_other_versions_of_triton() -> None:
    assert gluon_kernel("mla_hopper", "3.5.1") is None
    assert gluon_kernel("mla_hopper", "3.7.0") is None


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(("page", "q"), [(16, 1), (64, 2), (128, 3)], ids=str)
def test_64_rows_and_more_over_other_pages_and_several_new_tokens(page: int, q: int) -> None:
    check(
        lens=[300, 0, 64, 5], heads=96, q=q, page=page, latent_dim=512, rope=64,
        dtype=torch.bfloat16, plan=q == 2, config=None,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("plan", [False, True], ids=["static", "planned"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("page", [1, 8, 16, 32, 48, 64, 128])
def test_few_rows_over_pages_copied_whole_and_row_by_row(page: int, dtype: Any, plan: bool) -> None:
    check(
        lens=[300, 0, 64, 5, 1000, 640], page=page, latent_dim=512, rope=64, dtype=dtype,
        plan=plan, config=None,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("plan", [False, True], ids=["static", "planned"])
@pytest.mark.parametrize(("heads", "q"), [(5, 1), (16, 2), (24, 1), (8, 3), (1, 1)], ids=str)
def test_few_rows_of_other_numbers_of_heads_and_new_tokens(heads: int, q: int, plan: bool) -> None:
    check(
        lens=[301, q, 64, 4000, 66], heads=heads, q=q, page=16, latent_dim=512, rope=64,
        dtype=torch.bfloat16, plan=plan, config=None,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("plan", [False, True], ids=["static", "planned"])
def test_few_rows_of_more_sequences_than_programs_at_a_time(plan: bool) -> None:
    lens = [(37 * i) % 700 for i in range(300)]
    check(lens=lens, latent_dim=512, rope=64, dtype=torch.bfloat16, plan=plan, config=None)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("plan", [False, True], ids=["static", "planned"])
def test_the_real_shape_with_the_shipped_configuration(heads: int, plan: bool) -> None:
    check(
        lens=[5000, 77, 1024, 9], heads=heads, latent_dim=512, rope=64, dtype=torch.bfloat16,
        plan=plan, config=None,
    )  # fmt: skip


@pytest.mark.parametrize("rows", [16, 32, 64, 128])
def test_another_triton_is_asked_for_nothing_of_gluons(rows: int) -> None:
    """Not for a map of the pages, either, which is made by what it may lack."""
    latent = torch.empty(4, 64, 576, dtype=torch.bfloat16, device="meta")
    config = MlaConfig(rows, 64, num_warps=8, num_stages=2, resident=1, hopper=True)
    assert hopper_kernel(latent, config, "3.3.1") == (None, None)


def test_few_rows_over_pages_that_no_map_fits_are_left_to_tritons_kernel() -> None:
    config = MlaConfig(16, 64, num_warps=8, num_stages=2, resident=1, hopper=True)
    for page, taken in ((8, False), (16, True), (48, False), (64, True)):
        latent = torch.empty(4, page, 576, dtype=torch.bfloat16, device="meta")
        kernel, pages = hopper_kernel(latent, config, "3.6.0")
        assert (kernel is not None, pages is not None) == (taken, taken)
        assert hopper_kernel(latent, replace(config, block_m=64), "3.6.0")[0] is not None
