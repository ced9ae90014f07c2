# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Merge two attention states of the same queries over disjoint sets of keys.

For cascades over a shared prefix, chunked context, and partial results from another machine.
Exact up to rounding in any order; an empty state (lse = -inf, whatever its out) changes nothing,
and FlashAttention 2's +inf for an empty set is read as -inf.
"""

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import check, next_power_of_2

__all__ = ["lse_base2", "merge_states"]


@triton.jit(do_not_specialize=["rows"])
def merge_states_kernel(
    out_ptr,
    lse_ptr,
    out_a_ptr,
    lse_a_ptr,
    out_b_ptr,
    lse_b_ptr,
    rows,
    DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    offs_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_d = tl.arange(0, BLOCK_D)
    in_rows = offs_r < rows
    keep = in_rows[:, None] & (offs_d < DIM)[None, :]
    at = offs_r[:, None] * DIM + offs_d[None, :]  # [BLOCK_R, BLOCK_D]
    a = tl.load(lse_a_ptr + offs_r, mask=in_rows, other=float("-inf"))
    b = tl.load(lse_b_ptr + offs_r, mask=in_rows, other=float("-inf"))
    out_a = tl.load(out_a_ptr + at, mask=keep, other=0.0).to(tl.float32)
    out_b = tl.load(out_b_ptr + at, mask=keep, other=0.0).to(tl.float32)
    a = tl.where(a == float("inf"), float("-inf"), a)
    b = tl.where(b == float("inf"), float("-inf"), b)
    top = tl.maximum(a, b)
    safe = tl.where(top == float("-inf"), 0.0, top)
    weight_a = tl.exp2((a - safe) * 1.4426950408889634)
    weight_b = tl.exp2((b - safe) * 1.4426950408889634)
    norm = weight_a + weight_b
    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    out_a = tl.where((weight_a == 0.0)[:, None], 0.0, out_a * (weight_a / safe_norm)[:, None])
    out_b = tl.where((weight_b == 0.0)[:, None], 0.0, out_b * (weight_b / safe_norm)[:, None])
    tl.store(out_ptr + at, (out_a + out_b).to(out_ptr.dtype.element_ty), mask=keep)
    if lse_ptr is not None:
        lse = tl.where(norm == 0.0, float("-inf"), safe + tl.log2(safe_norm) * 0.6931471805599453)
        tl.store(lse_ptr + offs_r, lse, mask=in_rows)


def merge_states(
    *,
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """Merge `[tokens, heads, dim]` outs with natural `[tokens, heads]` fp32 lses; returns out.

    All contiguous. `out` may be out_a or out_b; `lse` is written when given.
    """
    tensors = (out_a, lse_a, out_b, lse_b)
    check(all(t.is_contiguous() for t in tensors), "states must be contiguous")
    check(out_a.shape == out_b.shape and lse_a.shape == lse_b.shape, "the states' shapes differ")
    if out is None:
        out = torch.empty_like(out_a)
    rows, dim = lse_a.numel(), out_a.shape[-1]
    if rows == 0:
        return out
    block_d = next_power_of_2(dim)
    block_r = max(1, 4096 // block_d)
    merge_states_kernel[(triton.cdiv(rows, block_r),)](
        out, lse, out_a, lse_a, out_b, lse_b, rows,
        DIM=dim, BLOCK_R=block_r, BLOCK_D=block_d, num_warps=4,
    )  # fmt: skip
    return out


def lse_base2(lse: torch.Tensor) -> torch.Tensor:
    """Convert a natural lse to base 2, which FlashInfer and FlashMLA use."""
    return lse * 1.4426950408889634
