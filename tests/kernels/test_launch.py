# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)
"""What the Gluon kernels take on, and maps that lead the copy engine where they look."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.launch import gluon_fits, page_map, page_maps
from forebay.kernels.attention.layout import PagedCache, Rule

PAGES, SLOTS, HEADS, DIM = 3, 16, 4, 64


def stored(order: str, pages: int = PAGES, slots: int = SLOTS, device: str = "cpu") -> Any:
    """Values `[pages, slots, heads, dim]` as engines store them."""
    if order == "heads first, keys beside values":
        both = torch.empty(pages, HEADS, slots, 2 * DIM, dtype=torch.float16, device=device)
        return both.transpose(1, 2)[..., DIM:]
    if order == "keys and values of a page":
        return torch.empty(pages, 2, slots, HEADS, DIM, dtype=torch.float16, device=device)[:, 1]
    if order == "heads first":
        both = torch.empty(2, pages, HEADS, slots, DIM, dtype=torch.float16, device=device)
        return both[1].transpose(2, 1)
    return torch.empty(2, pages, slots, HEADS, DIM, dtype=torch.float16, device=device)[1]


ORDERS = ["heads first, keys beside values", "keys and values of a page", "heads first", "plain"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_map_leads_to_every_head_of_every_slot(order: str) -> None:
    values = stored(order)
    values.copy_(torch.randn(values.shape))
    of_page, of_slot, of_head, _ = values.stride()
    made = page_map(values, 64)
    rows, columns = made.shape
    seen = torch.as_strided(values, made.shape, made.strides)
    for page in range(PAGES):
        for head in range(HEADS):
            # As `head_place` and `take_pages` of hopper.py have it.
            row = page * (of_page // of_slot) + head * of_head // of_slot
            column = head * of_head % of_slot
            assert row + SLOTS <= rows
            assert column + DIM <= columns
            tile = seen[row : row + SLOTS, column : column + DIM]
            assert torch.equal(tile, values[page, :, head])


@pytest.mark.parametrize(("slots", "rows"), [(16, 16), (64, 64), (256, 64)])
def test_a_copy_is_a_page_or_a_tile_of_one_and_128_bytes(slots: int, rows: int) -> None:
    values = stored("plain", slots=slots)
    assert page_map(values, 64).block_shape == [rows, 64]
    small = page_map(values.view(torch.int8), 64)
    assert (small.block_shape, small.layout.element_bitwidth) == ([rows, 128], 8)


@pytest.mark.parametrize("slots", [1, 8, 24])
def test_small_pages_and_pages_of_no_power_of_two_have_none(slots: int) -> None:
    assert page_map(stored("plain", slots=slots), 64) is None


def test_pages_and_heads_that_are_no_whole_slots_apart_have_none() -> None:
    room = torch.empty(PAGES * 8192, dtype=torch.float16)
    pages = room.as_strided((PAGES, SLOTS, HEADS, DIM), (SLOTS * 256 + 16, 256, DIM, 1))
    heads = room.as_strided((PAGES, SLOTS, HEADS, DIM), (6400, DIM, SLOTS * DIM + 16, 1))
    assert (page_map(pages, 64), page_map(heads, 64)) == (None, None)


def test_rows_past_32_bits_have_none() -> None:
    most = (1 << 31) // SLOTS
    assert page_map(stored("plain", pages=most, device="meta"), 64) is not None
    assert page_map(stored("plain", pages=most + 1, device="meta"), 64) is None


def test_keys_have_none_where_values_have_none() -> None:
    lens = torch.empty(1, dtype=torch.int32)
    fits = stored("plain")
    wide = torch.empty(PAGES * 8192, dtype=torch.float16)
    wide = wide.as_strided((PAGES, SLOTS, HEADS, DIM), (SLOTS * 256 + 16, 256, DIM, 1))
    assert page_maps(PagedCache(fits, wide, lens, block_table=lens), 64) == (None, None)
    assert None not in page_maps(PagedCache(fits, fits, lens, block_table=lens), 64)


def asked(
    rule: Rule | None = None, *, dim: int = 128, kv: Any = torch.bfloat16, device: str = "meta",
    table: Any = torch.int32, **query: Any,
) -> bool:  # fmt: skip
    """Whether they take on 8 rows; a meta tensor stands for an H200."""
    pool = torch.empty(4, 16, 2, dim, dtype=kv, device=device)
    lens = torch.empty(8, dtype=torch.int32, device=device)
    rows = torch.empty(8, 8, dim, **{"dtype": torch.bfloat16, "device": device} | query)
    cache = PagedCache(pool, pool, lens, block_table=lens.to(table))
    return gluon_fits(rows, cache, rule or Rule())


def test_causal_order_and_trees_over_16_bits_are_taken_on() -> None:
    tree = Rule(tree=torch.empty(8, dtype=torch.int64, device="meta"))
    assert [asked(), asked(tree), asked(dim=64)] == [True] * 3


def test_other_rules_types_and_shapes_are_left_to_triton() -> None:
    sinks = torch.empty(8, device="meta")
    for rule in (Rule(window=64), Rule(soft_cap=30.0), Rule(sinks=sinks)):
        assert not asked(rule)
    assert not asked(dim=96)
    assert not asked(kv=torch.float16)
    assert not asked(kv=torch.float32, dtype=torch.float32)
    assert not asked(kv=torch.int8)
    assert not asked(table=torch.int64)
    assert not asked(device="cpu")


def test_rows_that_no_copy_of_16_bytes_reaches_are_left_to_triton() -> None:
    pool = torch.empty(4, 16, 2, 128, dtype=torch.bfloat16, device="meta")
    lens = torch.empty(8, dtype=torch.int32, device="meta")
    cache = PagedCache(pool, pool, lens, block_table=lens)
    for strides in ((8 * 128 + 4, 128, 1), (8 * 132, 132, 1)):
        rows = torch.empty(20_000, dtype=torch.bfloat16, device="meta")
        assert not gluon_fits(rows.as_strided((8, 8, 128), strides), cache, Rule())
    narrow = replace(cache, value=pool[..., :64])
    rows = torch.empty(8, 8, 128, dtype=torch.bfloat16, device="meta")
    assert not gluon_fits(rows, narrow, Rule())
