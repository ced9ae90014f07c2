# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Store new keys and values in the paged cache, quantising them on the way if it is 8-bit.

One program per token and block of kv heads; keys and values in one launch. A row is read once, its
largest magnitude found in registers, and payload and scale written.
"""

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import check, next_power_of_2, starts_early

__all__ = ["write_cache"]


@triton.jit
def _store_rows(
    x,
    cache_ptr,
    scale_ptr,
    offs_h,
    offs_d,
    keep,
    stride_head,
    stride_s_head,
    HEADS: tl.constexpr,
    QUANT: tl.constexpr,
):
    """Store rows `[BLOCK_H, BLOCK_D]` of one token."""
    at = cache_ptr + offs_h[:, None] * stride_head + offs_d[None, :]
    if QUANT == 0:
        tl.store(at, x.to(cache_ptr.dtype.element_ty), mask=keep)
    else:
        x = x.to(tl.float32)
        top: tl.constexpr = 127.0 if QUANT == 8 else 448.0
        scale = tl.maximum(tl.max(tl.abs(x), 1) / top, 1e-10)
        # One division a row; the largest comes out as top but for a rounding or two, which int8's
        # and e4m3's own take away again: nothing to clamp.
        y = x * (1.0 / scale)[:, None]
        if QUANT == 8:
            # 1.5 * 2^23: adding it leaves no fraction bits, so fp32 itself rounds to nearest even,
            # and the last byte is the integer.
            y = (y + 12582912.0).to(tl.int32, bitcast=True)
        tl.store(at, y.to(cache_ptr.dtype.element_ty), mask=keep)
        tl.store(scale_ptr + offs_h * stride_s_head, scale, mask=offs_h < HEADS)


@triton.jit
def write_cache_kernel(
    key_ptr,
    value_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_scale_ptr,
    v_scale_ptr,
    slots_ptr,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_k_page,
    stride_k_slot,
    stride_k_head,
    stride_v_page,
    stride_v_slot,
    stride_v_head,
    stride_s_page,
    stride_s_slot,
    stride_s_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    QUANT: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if slot < 0:
        return
    page = slot // PAGE
    inner = slot % PAGE
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    offs_v = tl.arange(0, BLOCK_V)
    scale_at = page * stride_s_page + inner * stride_s_slot
    if QUANT > 0:
        k_scale_ptr += scale_at
        v_scale_ptr += scale_at
    in_key = (offs_h < HEADS)[:, None] & (offs_d < HEAD_DIM)[None, :]
    in_value = (offs_h < HEADS)[:, None] & (offs_v < VALUE_DIM)[None, :]
    from_key = key_ptr + token * stride_key_token + offs_h[:, None] * stride_key_head
    from_value = value_ptr + token * stride_value_token + offs_h[:, None] * stride_value_head
    # Both under way before either is used.
    keys = tl.load(from_key + offs_d[None, :], mask=in_key, other=0.0)
    values = tl.load(from_value + offs_v[None, :], mask=in_value, other=0.0)
    _store_rows(
        keys, k_cache_ptr + page * stride_k_page + inner * stride_k_slot, k_scale_ptr, offs_h,
        offs_d, in_key, stride_k_head, stride_s_head, HEADS, QUANT,
    )  # fmt: skip
    _store_rows(
        values, v_cache_ptr + page * stride_v_page + inner * stride_v_slot, v_scale_ptr, offs_h,
        offs_v, in_value, stride_v_head, stride_s_head, HEADS, QUANT,
    )  # fmt: skip


def write_cache(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Store `[tokens, kv heads, dim]` keys and values at slots `[tokens]`; slot < 0 is skipped.

    The caches are `[pages, slots, kv heads, dim]` views of any strides. With scales of shape
    `[pages, slots, kv heads]` (equal strides) they are int8 or e4m3, quantised per token and head.
    Two tokens must not name the same slot.
    """
    check(key.stride(-1) == 1 and value.stride(-1) == 1, "key and value need unit stride on dim")
    check((key_scale is None) == (value_scale is None), "key_scale and value_scale go together")
    quant = 0
    strides = (0, 0, 0)
    if key_scale is not None:
        check(key_scale.stride() == value_scale.stride(), "the scales must have equal strides")
        quant = 8 if key_cache.dtype == torch.int8 else 1
        strides = key_scale.stride()
    tokens = slots.shape[0]
    if tokens == 0:
        return
    heads, dim, value_dim = key.shape[1], key.shape[2], value.shape[2]
    block_d, block_v = next_power_of_2(dim), next_power_of_2(value_dim)
    use_pdl = starts_early(key.device)
    block_h = min(next_power_of_2(heads), max(1, 2048 // block_d))
    write_cache_kernel[(tokens, triton.cdiv(heads, block_h))](
        key, value, key_cache, value_cache, key_scale, value_scale, slots,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        *key_cache.stride()[:3], *value_cache.stride()[:3], *strides,
        HEADS=heads, HEAD_DIM=dim, VALUE_DIM=value_dim, PAGE=key_cache.shape[1], QUANT=quant,
        PDL=use_pdl, BLOCK_H=block_h, BLOCK_D=block_d, BLOCK_V=block_v,
        num_warps=max(1, min(4, block_h * block_d // (1024 if quant else 256))),
        launch_pdl=use_pdl,
    )  # fmt: skip
