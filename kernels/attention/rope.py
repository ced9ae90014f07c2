# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# (torch and triton are not installed where types are checked, and its language is not Python's)
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Mode `rerope`: queries and keys are rotated as they are read, at their index in a small cache.

A score depends on the distance of the indices alone, so that any two with the right difference
will do. In the window keys count from the first token that a program's first row sees, and so do
queries. A sink keeps its place; against sinks a query stands no further than one past the sinks and
the rest of the window: where sinks and recent tokens lie side by side, without the gap between.

What the dot products take is in parts: first and second of each pair, then columns not rotated.
ROPE is how far apart two pairs lie: 1, the second of each half a rotation on; 2, interleaved; 0 is
no rotation.
"""

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from forebay.kernels._common.host import check, next_power_of_2
from forebay.kernels._common.jit import to_half

from .layout import PagedCache, Rule

__all__ = ["load_queries", "rope_config", "rope_constants", "rotated_scores"]


def rope_constants(rule: Rule, new_tokens: int) -> dict[str, Any]:
    """Tables and compile-time constants for programs of up to new_tokens tokens of a sequence.

    Raises ValueError where the tables are too short for them: nothing checks that on the device.
    """
    rope = rule.rope
    if rope is None:
        return {"cos_ptr": None, "sin_ptr": None, "ROPE": 0, "ROTARY_DIM": 0}
    rows = rule.window + max(rule.sink_tokens, new_tokens - 1)
    check(
        rope.cos.shape[0] >= rows,
        f"rope tables have {rope.cos.shape[0]} rows, and this step needs {rows}",
    )
    return {
        "cos_ptr": rope.cos,
        "sin_ptr": rope.sin,
        "ROPE": 2 if rope.interleaved else 1,
        "ROTARY_DIM": rope.dim,
    }


def rope_config(config: Any, rule: Rule, cache: PagedCache) -> Any:
    """Return settings that fit: two tiles of 64 KB, angles as well as keys and values."""
    if rule.rope is None:
        return config
    values = 2 * next_power_of_2(cache.key.shape[3]) * cache.key.element_size()
    angles = 4 * next_power_of_2(rule.rope.dim)
    return replace(
        config,
        block_n=min(config.block_n, 64, next_power_of_2(2**16 // (values + angles) + 1) // 2),
        num_stages=min(config.num_stages, 2),
        num_warps=8 if config.block_m >= 64 else config.num_warps,
    )


@triton.jit
def turned(first, second, index, keep, cos_ptr, sin_ptr, ROTARY_DIM: tl.constexpr):
    """Rotate pairs `[rows, pairs]` by the angles at index `[rows]`, in fp32."""
    half: tl.constexpr = ROTARY_DIM // 2
    offs = tl.arange(0, first.shape[1])
    at = index[:, None] * half + offs[None, :]
    known = keep[:, None] & (offs < half)[None, :]
    cos = tl.load(cos_ptr + at, mask=known, other=0.0)
    sin = tl.load(sin_ptr + at, mask=known, other=0.0)
    a = first.to(tl.float32)
    b = second.to(tl.float32)
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def rotated_query(
    at,
    valid,
    index,
    cos_ptr,
    sin_ptr,
    ROPE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Load query rows from pointers at `[rows]` and rotate them at index; returns the parts."""
    half: tl.constexpr = ROTARY_DIM // 2
    rest: tl.constexpr = HEAD_DIM - ROTARY_DIM
    # A product takes 16 columns at least.
    block: tl.constexpr = max(16, triton.next_power_of_2(half))
    offs = tl.arange(0, block)
    keep = valid[:, None] & (offs < half)[None, :]
    first_at = offs * ROPE
    second_at = first_at + (1 if ROPE == 2 else half)
    first = tl.load(at[:, None] + first_at[None, :], mask=keep, other=0.0)
    second = tl.load(at[:, None] + second_at[None, :], mask=keep, other=0.0)
    first, second = turned(first, second, index, valid, cos_ptr, sin_ptr, ROTARY_DIM)
    if rest > 0:
        block_r: tl.constexpr = max(16, triton.next_power_of_2(rest))
        offs_r = tl.arange(0, block_r)
        keep_r = valid[:, None] & (offs_r < rest)[None, :]
        still = tl.load(at[:, None] + (ROTARY_DIM + offs_r)[None, :], mask=keep_r, other=0.0)
        return (first.to(COMPUTE), second.to(COMPUTE), still.to(COMPUTE))
    else:  # noqa: RET505 - a compile-time branch
        return (first.to(COMPUTE), second.to(COMPUTE))


@triton.jit
def load_queries(
    q_ptr,
    q_at,
    offs_d,
    valid,
    row_token,
    first_token,
    seq_len,
    q_len,
    cos_ptr,
    sin_ptr,
    WINDOW: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    ROPE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Load query rows at offsets `[rows]`: what looks at the window, what at sinks, and base.

    offs_d: the columns, where nothing is rotated. row_token: which of its sequence's new tokens
    each row is of; first_token: the least of them.
    """
    if ROPE:
        # An empty sequence has queries too, in a padded batch.
        prefix = tl.maximum(seq_len - q_len, 0)
        position = prefix + row_token
        base = tl.maximum(prefix + first_token - WINDOW + 1, 0)
        q = rotated_query(
            q_ptr + q_at, valid, position - base, cos_ptr, sin_ptr,
            ROPE, ROTARY_DIM, HEAD_DIM, COMPUTE,
        )  # fmt: skip
        q_sinks = rotated_query(
            q_ptr + q_at, valid, tl.minimum(position, SINK_TOKENS + WINDOW - 1), cos_ptr, sin_ptr,
            ROPE, ROTARY_DIM, HEAD_DIM, COMPUTE,
        )  # fmt: skip
        return q, q_sinks, base
    else:  # noqa: RET505 - a compile-time branch
        q = tl.load(
            q_ptr + q_at[:, None] + offs_d[None, :],
            mask=valid[:, None] & (offs_d < HEAD_DIM)[None, :],
            other=0.0,
        ).to(COMPUTE)  # [BLOCK_M, BLOCK_D]
        return (q,), (q,), 0


@triton.jit
def load_key(
    k_ptr,
    rows,
    inside,
    offs,
    END: tl.constexpr,
    dtype: tl.constexpr,
    QUANT: tl.constexpr,
    ASM: tl.constexpr,
):
    """Load columns of keys at row offsets `[BLOCK_N]`, as the type that products take."""
    k = tl.load(
        k_ptr + rows[:, None] + offs[None, :],
        mask=inside[:, None] & (offs < END)[None, :],
        other=0.0,
    )
    if QUANT and dtype == tl.float16:
        return to_half(k, ASM)
    else:  # noqa: RET505 - a compile-time branch
        return k.to(dtype)


@triton.jit
def rotated_scores(
    q,
    k_ptr,
    rows,
    inside,
    index,
    cos_ptr,
    sin_ptr,
    ROPE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    QUANT: tl.constexpr,
    ASM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of the query's parts against the keys at rows, which are rotated at index."""
    half: tl.constexpr = ROTARY_DIM // 2
    rest: tl.constexpr = HEAD_DIM - ROTARY_DIM
    block: tl.constexpr = q[0].shape[1]
    dtype: tl.constexpr = q[0].dtype
    if ROPE == 2:
        # Loaded whole and split afterwards: every second column would come two bytes at a time.
        offs = tl.arange(0, 2 * block)
        both = load_key(k_ptr, rows, inside, offs, ROTARY_DIM, dtype, QUANT, ASM)
        first, second = tl.split(tl.reshape(both, [rows.shape[0], block, 2]))
    else:
        offs = tl.arange(0, block)
        first = load_key(k_ptr, rows, inside, offs, half, dtype, QUANT, ASM)
        second = load_key(k_ptr + half, rows, inside, offs, half, dtype, QUANT, ASM)
    first, second = turned(first, second, index, inside, cos_ptr, sin_ptr, ROTARY_DIM)
    scores = tl.dot(q[0], tl.trans(first.to(dtype)), input_precision=PRECISION)
    scores = tl.dot(q[1], tl.trans(second.to(dtype)), scores, input_precision=PRECISION)
    if rest > 0:
        offs_r = tl.arange(0, q[2].shape[1])
        still = load_key(k_ptr + ROTARY_DIM, rows, inside, offs_r, rest, dtype, QUANT, ASM)
        scores = tl.dot(q[2], tl.trans(still), scores, input_precision=PRECISION)
    return scores
