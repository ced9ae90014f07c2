# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""What decode_narrow and decode_narrow8 share: all but how a tile is copied and attended.

Scores are `[tokens, rows]` in both, and outputs `[dims, rows]`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from forebay.kernels._common.jit import first_item, split_of

from .decode_hopper import table_row

__all__ = [
    "LANES",
    "finish",
    "load_ids",
    "load_query",
    "own_items",
    "seen_of",
    "sums_layout",
]

LANES = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))


@gluon.jit
def own_items(
    parts_ptr, seq_lens_ptr, max_splits, min_tokens, single_below, fixed_tokens,
    BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Return the program's first item: sequence, start, end, count; its index; the one past all."""
    if parts_ptr is None:
        split = gl.program_id(1)
        b = gl.program_id(2)
        seq_len = gl.load(seq_lens_ptr + b)
        count, chunk = split_of(
            seq_len, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
        )
        start = split * chunk
        end = gl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = gl.where(split < count, first + 1, first)
    else:
        b, start, end, count, first, last = first_item(parts_ptr, gl.program_id(1))
        last = gl.where(b < 0, first, last)
    return b, start, end, count, first, last


@gluon.jit
def load_query(
    q_ptr, kv_head, q_start, q_len, stride_q_token, stride_q_head, GROUP: gl.constexpr,
    DIM: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Load the queries `[ROWS, DIM]`; rows past the last repeat it, and are not stored."""
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, COPY))
    token = (q_start + gl.minimum(rows // GROUP, q_len - 1)).to(gl.int64)
    head = kv_head * GROUP + rows % GROUP
    at = q_ptr + gl.expand_dims(token * stride_q_token + head * stride_q_head, 1)
    dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY))
    return gl.load(at + gl.expand_dims(dims, 0))


@gluon.jit
def load_ids(
    table_ptr, indptr_ptr, b, start, end, chunk, stride_table, PAGE: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Load the pages of 32 pieces of ROWS tokens, counted back from the last tile's end."""
    row_ptr = table_row(table_ptr, indptr_ptr, b, stride_table)
    tiles = (end - start + BLOCK_N - 1) // BLOCK_N
    lanes = gl.arange(0, 32, layout=LANES)
    piece = tiles * (BLOCK_N // ROWS) - 1 - chunk * 32 - lanes
    token = start + piece * ROWS
    # What lies past the end is page 0's, and seen by nobody.
    return gl.load(row_ptr + token // PAGE, mask=(piece >= 0) & (token < end), other=0)


@gluon.jit
def seen_of(tokens, row_pos, low, high, prefix, end, TREE: gl.constexpr):
    """Which of the tokens each row sees, `[tokens, rows]`."""
    token = gl.expand_dims(tokens, 1)
    if TREE:
        node = token - prefix
        word = gl.where(node < 32, gl.expand_dims(low, 0), gl.expand_dims(high, 0))
        seen = (node < 0) | (((word >> (node & 31)) & 1) != 0)
    else:
        seen = token <= gl.expand_dims(row_pos, 0)
    return seen & (token < end)


@gluon.constexpr_function
def sums_layout(rows):
    """Layout of `[32, rows]` sums, each of what one thread has of a tile's weights."""
    registers = [[0, 1], *([0, n] for n in (8, 16) if n < rows)]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[8, 0], [16, 0]], [], [32, rows])


@gluon.jit
def merge(
    out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, first_of, count, max_query, q_start, q_len,
    kv_head, stride_out_token, stride_out_head, HEADS: gl.constexpr, GROUP: gl.constexpr,
    DIM: gl.constexpr, ROWS: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """Merge a sequence's states, in order, four loaded at a time."""
    LINES: gl.constexpr = gl.BlockedLayout([4, 1], [DIM // 4, 128 // DIM], [1, 4], [0, 1])
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LINES))
    row_token = rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    keep = row_token < q_len
    dims = gl.expand_dims(gl.arange(0, DIM, layout=gl.SliceLayout(1, LINES)), 1)
    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, LINES))
    norm = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(0, LINES))
    acc = gl.full([DIM, ROWS], 0.0, gl.float32, LINES)
    for some in range(0, count, 4):
        lses = ()
        outs = ()
        for j in gl.static_range(4):
            there = keep & (some + j < count)
            item = gl.cast(first_of + some + j, gl.int64)
            at = (item * max_query + row_token) * HEADS + row_head
            # Past L1, which other multiprocessors' stores do not reach.
            lse2 = gl.load(part_lse_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            part = gl.load(
                part_out_ptr + gl.expand_dims(at * DIM, 0) + dims,
                mask=gl.expand_dims(there, 0), other=0.0, cache_modifier=".cg",
            )  # fmt: skip
            lses = lses + (lse2,)  # noqa: RUF005 - Gluon unpacks none
            outs = outs + (part,)  # noqa: RUF005 - Gluon unpacks none
        for j in gl.static_range(4):
            m_new = gl.maximum(m, lses[j])
            m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
            weight = gl.exp2(lses[j] - m_safe)
            rescale = gl.exp2(m - m_safe)
            acc = acc * gl.expand_dims(rescale, 0) + outs[j] * gl.expand_dims(weight, 0)
            norm = norm * rescale + weight
            m = m_new
    safe_norm = gl.where(norm == 0.0, 1.0, norm)
    row = (q_start + row_token).to(gl.int64)
    to = out_ptr + gl.expand_dims(row * stride_out_token + row_head * stride_out_head, 0) + dims
    gl.store(to, (acc / gl.expand_dims(safe_norm, 0)).to(DTYPE), mask=gl.expand_dims(keep, 0))
    if lse_ptr is not None:
        lse2 = gl.where(norm == 0.0, float("-inf"), m + gl.log2(safe_norm))
        gl.store(lse_ptr + row * HEADS + row_head, lse2 * 0.6931471805599453, mask=keep)


@gluon.jit
def finish(
    acc, m, norm, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr, first_ptr, kv_head, b,
    item, count, q_start, q_len, max_query, max_splits, stride_out_token, stride_out_head,
    PLANNED: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    SPLIT: gl.constexpr, DTYPE: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Store an item's result or its state, and merge the sequence's if it is the last of them."""
    HEADS: gl.constexpr = KV_HEADS * GROUP
    nobody = norm == 0.0
    lse2 = gl.where(nobody, float("-inf"), m + gl.log2(gl.where(nobody, 1.0, norm)))
    factor = gl.expand_dims(1.0 / gl.where(nobody, 1.0, norm), 0)
    acc = gl.where(gl.expand_dims(nobody, 0), 0.0, acc * factor)
    dims = gl.expand_dims(gl.arange(0, DIM, layout=gl.SliceLayout(1, LAYOUT)), 1)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))
    row_token = rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    keep = row_token < q_len
    if not SPLIT or count == 1:
        row = (q_start + row_token).to(gl.int64)
        to = row * stride_out_token + row_head * stride_out_head
        to = out_ptr + gl.expand_dims(to, 0) + dims
        gl.store(to, acc.to(DTYPE), mask=gl.expand_dims(keep, 0))
        if lse_ptr is not None:
            gl.store(lse_ptr + row * HEADS + row_head, lse2 * 0.6931471805599453, mask=keep)
    else:
        at = (gl.cast(item, gl.int64) * max_query + row_token) * HEADS + row_head
        state = part_out_ptr + gl.expand_dims(at * DIM, 0) + dims
        gl.store(state, acc, mask=gl.expand_dims(keep, 0))
        gl.store(part_lse_ptr + at, lse2, mask=keep)
        if arrived_ptr is not None:
            first_of = b * max_splits
            if PLANNED:
                first_of = gl.load(first_ptr + b)
            counter = arrived_ptr + b * KV_HEADS + kv_head
            # Every thread's part of the state must be out before the counter says so.
            gl.thread_barrier()
            if gl.atomic_add(counter, 1) == count - 1:
                merge(
                    out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, first_of, count,
                    max_query, q_start, q_len, kv_head, stride_out_token,
                    stride_out_head, HEADS, GROUP, DIM, ROWS, DTYPE,
                )  # fmt: skip
                gl.store(counter, 0)
