# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.kv_write import write_cache
from forebay.kernels.attention.reference import write_reference
from forebay.kernels.testing import DEVICE, DTYPES

PAGES, PAGE = 5, 16


def rows(heads: int, dim: int, dtype: Any, seed: int) -> Any:
    rng = torch.Generator(device=DEVICE).manual_seed(seed)
    # Keys and values are slices of one projection in the engines, so not contiguous.
    both = torch.randn(9, 2, heads, dim, generator=rng, device=DEVICE)
    both[3] = 0.0
    return both.to(dtype)


def slots() -> Any:
    return torch.tensor([3, -1, 79, 16, 0, -1, 40, 41, 15], device=DEVICE)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(8, 64), (3, 80), (1, 128)], ids=str)
def test_rows_land_in_their_slots_and_nowhere_else(heads: int, dim: int, dtype: Any) -> None:
    both = rows(heads, dim, dtype, 1)
    cache = torch.full((PAGES, heads, PAGE, 2 * dim), 7.0, dtype=dtype, device=DEVICE)
    cache = cache.transpose(1, 2)
    want = cache.clone()
    for at, side in ((0, slice(None, dim)), (1, slice(dim, None))):
        write_reference(rows=both[:, at], cache=want[..., side], slots=slots())
    write_cache(
        key=both[:, 0], value=both[:, 1], key_cache=cache[..., :dim], value_cache=cache[..., dim:],
        slots=slots(),
    )  # fmt: skip
    assert torch.equal(cache, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_8_bit_rows_carry_a_scale_per_token_and_head(kv: Any, dtype: Any) -> None:
    heads, dim = 4, 64
    both = rows(heads, dim, dtype, 2)
    made: list[Any] = []
    for _ in range(2):
        payload = torch.zeros(2, PAGES, PAGE, heads, dim, device=DEVICE).to(kv)
        scale = torch.full((2, PAGES, heads, PAGE), math.nan, device=DEVICE).transpose(2, 3)
        made += [payload, scale]
    got, got_scale, want, want_scale = made
    write_cache(
        key=both[:, 0], value=both[:, 1], key_cache=got[0], value_cache=got[1], slots=slots(),
        key_scale=got_scale[0], value_scale=got_scale[1],
    )  # fmt: skip
    for at in (0, 1):
        write_reference(rows=both[:, at], cache=want[at], slots=slots(), scale=want_scale[at])
    torch.testing.assert_close(got_scale, want_scale, equal_nan=True, rtol=1e-6, atol=0)
    off = (got.float() - want.float()).abs()
    if kv == torch.int8 or DEVICE == "cuda":
        # One step of the format at most, and rarely: a quotient may fall on the other side.
        step = 1.0 if kv == torch.int8 else want.float().abs() / 8 + 2**-9
        assert bool((off <= step).all())
    # The interpreter's own cast to e4m3 differs from torch's in a few values.
    assert float((off > 0).float().mean()) < 0.03


def test_int8_rounds_halves_to_even() -> None:
    dim = 16
    key = torch.full((1, 1, dim), 0.5, device=DEVICE)
    key[0, 0, 0], key[0, 0, 1] = 127.0, 1.5
    cache = torch.zeros(2, 1, 16, 1, dim, dtype=torch.int8, device=DEVICE)
    scale = torch.zeros(2, 1, 16, 1, device=DEVICE)
    write_cache(
        key=key, value=key, key_cache=cache[0], value_cache=cache[1],
        slots=torch.tensor([5], device=DEVICE), key_scale=scale[0], value_scale=scale[1],
    )  # fmt: skip
    assert cache[0, 0, 5, 0, :4].tolist() == [127, 2, 0, 0]
