# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)
"""Which decode kernel runs, and that what was made for one is walked rightly by another."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.decode import Workspace, decode_plan, paged_decode
from forebay.kernels.attention.decode_settings import (
    NARROW,
    DecodeConfig,
    decode_config,
    fitted,
    programs_of,
    walking,
)
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.mla import mla_decode
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import DEVICE, assert_close, guarded_outputs, make_case

SMALL = DecodeConfig(block_m=16, block_n=32, num_warps=4, num_stages=2, resident=2)
TYPES = [torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def on_h200(
    sequences: int, heads: int = 32, kv_heads: int = 8, *, dim: int = 128, page: int = 16,
    new: int = 1, kv: Any = torch.bfloat16, value: Any = None,
) -> tuple[Any, PagedCache]:  # fmt: skip
    """Return queries and a cache of an H200, for which meta tensors stand."""
    key = torch.empty(64, page, kv_heads, dim, dtype=kv, device="meta")
    scale = torch.empty(64, page, kv_heads, device="meta") if kv.itemsize == 1 else None
    lens = torch.empty(sequences, dtype=torch.int32, device="meta")
    query = torch.empty(sequences * new, heads, dim, dtype=torch.bfloat16, device="meta")
    return query, PagedCache(
        key, key.to(value or kv), lens, block_table=lens, key_scale=scale, value_scale=scale
    )


def settled(query: Any, cache: PagedCache, new: int, policy: str) -> DecodeConfig:
    """Return the settings that a step would run with."""
    config = decode_config(query=query, cache=cache, max_query_len=new, policy=policy)
    return fitted(config, query, cache, rule=Rule(), max_query_len=new, policy=policy)


@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_narrow_decode_gets_all_rows_of_a_head_and_pages_that_it_can_copy(dim: int) -> None:
    """Over groups, new tokens, batches, pages, types and policies."""
    narrow = 0
    for group, new, sequences, page, kv, policy in itertools.product(
        range(1, 17), (1, 2, 3, 5, 8), (1, 8, 24, 128), (1, 16, 24, 128), TYPES,
        ("occupancy", "balanced", "fixed", "mission"),
    ):  # fmt: skip
        query, cache = on_h200(sequences, 8 * group, dim=dim, page=page, new=new, kv=kv)
        made = settled(query, cache, new, policy)
        if not made.hopper or made.block_m >= 64:
            continue
        narrow += 1
        assert group * new <= made.block_m <= 32
        assert programs_of(query, cache, made, new) == 8
        assert (dim, policy in {"occupancy", "balanced"}, page in {16, 128}) == (128, True, True)
        assert made.block_n == made.hopper == 64
    assert (narrow > 500) == (dim == 128)


def test_more_rows_than_a_program_has_are_left_to_tritons_kernel() -> None:
    """Settings may be a caller's own; narrow decode has no second block of rows."""
    query, cache = on_h200(8, new=8)
    mine = DecodeConfig(16, 64, 4, 3, 2, hopper=64, hopper_stages=3)
    for new, tile in ((4, 64), (8, 0)):
        rows = query[: 8 * new]
        made = fitted(mine, rows, cache, rule=Rule(), max_query_len=new, policy="occupancy")
        assert made.hopper == tile


def test_caches_of_two_types_are_left_to_tritons_kernel() -> None:
    for kv, value in ((torch.bfloat16, torch.float16), (torch.int8, torch.float8_e4m3fn)):
        query, cache = on_h200(8, kv=kv, value=value)
        assert settled(query, cache, 1, "occupancy").hopper == 0
    query, cache = on_h200(8, kv=torch.float8_e5m2)
    assert settled(query, cache, 1, "occupancy").hopper == 0


@pytest.mark.parametrize("before", ["0", "1"])
@pytest.mark.parametrize("kv", TYPES, ids=str)
def test_a_plan_is_walked_by_a_tile_that_divides_its_own_whatever_was_said_between(
    monkeypatch: pytest.MonkeyPatch, before: str, kv: Any
) -> None:
    for sequences, new in itertools.product((1, 8, 65), (1, 4, 8, 16, 64)):
        query, cache = on_h200(sequences, new=new, kv=kv, page=128)
        monkeypatch.setenv(NARROW, before)
        planned = settled(query, cache, new, "balanced")
        monkeypatch.setenv(NARROW, "10"[int(before)])
        walked = walking(settled(query, cache, new, "balanced"), planned.block_n)
        assert planned.block_n % walked.block_n == 0, (sequences, new)
        assert walked.hopper in {0, walked.block_n}


@pytest.mark.parametrize("policy", ["occupancy", "balanced", "fixed", "mission"])
def test_a_plan_of_small_tiles_is_walked_rightly_by_settings_of_large_ones(policy: Any) -> None:
    """Pages of 64: a tile of 64 that began at 32 would reach into the next page's slots."""
    case = make_case(seq_lens=[321, 40, 200, 0], page=64, dim=32)
    plan = decode_plan(query=case.query, cache=case.cache, config=replace(SMALL, min_tokens=32))
    assert plan.block_n == 32
    with guarded_outputs(case) as (out, lse):
        paged_decode(
            query=case.query, cache=case.cache, max_seq_len=case.max_seq_len, plan=plan, out=out,
            lse=lse, policy=policy, config=replace(SMALL, block_n=64),
        )  # fmt: skip
    want, want_lse = attention_reference(query=case.query, cache=case.cache)
    assert_close(out, want, case.query.dtype, (lse, want_lse))


def test_a_plan_made_for_another_step_is_not_written_into() -> None:
    case = make_case(seq_lens=[100, 40])
    other = make_case(seq_lens=[100, 40, 7])
    plan = decode_plan(query=case.query, cache=case.cache, config=SMALL)
    with pytest.raises(ValueError, match="made for another step"):
        decode_plan(query=other.query, cache=other.cache, config=SMALL, out=plan)
    finer = replace(SMALL, resident=16)
    with pytest.raises(ValueError, match="made for another step"):
        decode_plan(query=case.query, cache=case.cache, config=finer, out=plan)


def banded(*sizes: int) -> tuple[list[Any], Workspace]:
    """Return a workspace of these sizes amid bands, and what holds them."""
    types = (torch.float32, torch.float32, torch.int32)
    whole = [
        torch.full((n + 16,), 7, dtype=dtype, device=DEVICE)
        for n, dtype in zip(sizes, types, strict=True)
    ]
    room = Workspace(*(w[8:-8] for w in whole))
    room.arrived.zero_()
    return whole, room


@pytest.mark.parametrize("policy", ["occupancy", "balanced", "fixed", "mission"])
@pytest.mark.parametrize("fused", [0, 99])
@pytest.mark.parametrize("queries", [[5, 5, 5], [5, 0, 3]], ids=str)
def test_a_step_stays_within_the_least_workspace_that_is_taken(
    policy: Any, fused: int, queries: list[int]
) -> None:
    """And leaves its counters at zero, for the next."""
    case = make_case(seq_lens=[300, 0, 77], query_lens=queries, heads=8, kv_heads=2, dim=16)
    config = replace(SMALL, fused=fused, min_tokens=32, resident=16)
    asked: dict[str, Any] = {
        "query": case.query, "cache": case.cache, "max_seq_len": 512, "cu_query": case.cu_query,
        "max_query_len": 5, "policy": policy, "config": config, "fixed_tokens": 64,
    }  # fmt: skip

    def taken(items: int) -> bool:
        rows = items * 5 * 8
        whole, room = banded(rows * 16, rows, rows)
        try:
            paged_decode(**asked, workspace=room)
        except ValueError as refused:
            assert "workspace is too small" in str(refused)  # noqa: PT017 - the loop goes on
            return False
        assert all(
            w[side].unique().tolist() == [7] for w in whole for side in (slice(8), slice(-8, None))
        )
        assert not room.arrived.any()
        return True

    assert next(items for items in range(1, 200) if taken(items)) > 1


def test_a_workspace_for_smaller_values_is_refused() -> None:
    case = make_case(seq_lens=[300, 200], dim=32)
    room = Workspace.allocate(1000, 1, 8, 16, torch.device(DEVICE))
    short = replace(room, out=room.out[:64])
    with pytest.raises(ValueError, match="too small"):
        paged_decode(
            query=case.query, cache=case.cache, max_seq_len=300, config=SMALL, workspace=short,
            policy="balanced",
        )  # fmt: skip
    with pytest.raises(ValueError, match="too few counters"):
        paged_decode(
            query=case.query, cache=case.cache, max_seq_len=300, config=SMALL, policy="balanced",
            workspace=replace(room, out=room.out.repeat(2), arrived=room.arrived[:1]),
        )  # fmt: skip


def test_mla_refuses_a_workspace_that_is_too_small() -> None:
    lens = torch.full((2,), 4096, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="too small"):
        mla_decode(
            query=torch.zeros(2, 16, 576, dtype=torch.float16, device=DEVICE),
            latent=torch.zeros(4, 16, 576, dtype=torch.float16, device=DEVICE), seq_lens=lens,
            block_table=lens[:, None], max_seq_len=4096, scale=0.1,
            workspace=Workspace.allocate(1, 1, 16, 512, lens.device),
        )  # fmt: skip


def test_caches_whose_scales_or_types_the_kernels_do_not_read_are_refused() -> None:
    query, cache = on_h200(2, kv=torch.int8)
    cache.validate(query)
    assert cache.key_scale is not None
    apart = torch.empty(64, 8, 16, device="meta").transpose(1, 2)
    for wrong, why in (
        (replace(cache, value_scale=apart), "equal strides"),
        (replace(cache, key_scale=apart.half(), value_scale=apart.half()), "fp32"),
        (replace(cache, value=cache.value.to(torch.float8_e4m3fn)), "int8 or float8_e4m3fn"),
        (
            replace(cache, key=cache.key.view(torch.uint8), value=cache.value.view(torch.uint8)),
            "8_e4",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            wrong.validate(query)


def test_numbers_that_the_kernels_would_misread_are_refused() -> None:
    query, cache = on_h200(8)
    table = torch.empty(8, 4, dtype=torch.int32, device="meta")
    cache = replace(cache, block_table=table)
    cache.validate(query)
    heads = torch.empty(8, 1 << 19, 16, 128, dtype=torch.bfloat16, device="meta")
    heads = heads.permute(1, 2, 0, 3)
    for wrong, why in (
        (replace(cache, seq_lens=table[:, 0]), "seq_lens must lie side by side"),
        (replace(cache, block_table=table[:, ::2]), "page ids must lie side by side"),
        (replace(cache, key=heads), "key cache heads must lie within"),
    ):
        with pytest.raises(ValueError, match=why):
            wrong.validate(query)


def test_page_ids_of_64_bits_are_left_to_tritons_kernel() -> None:
    query, cache = on_h200(8)
    assert settled(query, cache, 1, "occupancy").hopper == 64
    assert cache.block_table is not None
    longer = replace(cache, block_table=cache.block_table.long())
    assert settled(query, longer, 1, "occupancy").hopper == 0
