# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.merge import lse_base2, merge_states
from forebay.kernels.attention.reference import merge_reference
from forebay.kernels.testing import DEVICE, DTYPES, error, tolerance


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(8, 64), (3, 80)], ids=str)
def test_two_states_merge_and_an_empty_one_changes_nothing(
    heads: int, dim: int, dtype: Any
) -> None:
    rng = torch.Generator(device=DEVICE).manual_seed(dim)
    outs = torch.randn(2, 7, heads, dim, generator=rng, device=DEVICE).to(dtype)
    lses = torch.randn(2, 7, heads, generator=rng, device=DEVICE) * 20
    lses[0, 1], lses[1, 2], lses[:, 3], lses[0, 4] = -math.inf, -math.inf, -math.inf, math.inf
    outs[0, 1], outs[:, 3] = math.nan, math.nan
    out = torch.full_like(outs[0], math.nan)
    lse = torch.full_like(lses[0], math.nan)
    merge_states(out_a=outs[0], lse_a=lses[0], out_b=outs[1], lse_b=lses[1], out=out, lse=lse)
    lses[0, 4] = -math.inf
    want, want_lse = merge_reference(outs=outs, lses=lses)
    assert error(out, want)[0] <= tolerance(dtype)[0]
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)


def test_base_2_is_what_other_libraries_call_lse() -> None:
    assert float(lse_base2(torch.tensor(math.log(8.0)))) == pytest.approx(3.0)
