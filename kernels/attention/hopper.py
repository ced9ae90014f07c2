# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, FURB136, N803, N806, PLR0913, PLR0917, SIM108
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""What the Gluon kernels of prefill and of wide decode share: one tile, copied and attended.

One warp copies keys and one values; one or two groups of four (warpgroups) compute 64 rows each and
wait for nothing but the tiles they need. Pages come by the bulk copy engine (TMA), an instruction
for 64 columns of a page; one for each thread's 16 bytes costs 4 to 13 % of prefill's speed. Within
a group the next tile's scores and this tile's output product are under way together (FlashAttention
3's order). Tiles are taken from the last to the first: the masked ones come before the rest.

Three things need a word, each read off the compiled code.

- A buffer is given back by `cp.async.mbarrier.arrive` by each thread (128 arrivals a group), since
  Triton puts a barrier before its own arrival. Nothing is under way then: it counts at once.
- `settle`: the assembler moves the wait for the output product above the softmax that is to run
  under it. A branch never taken on the softmax's result keeps it below.
- `take_turn`, `pass_turn`: while one group's products run the other's softmax does (ping-pong).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "again",
    "arrays",
    "attend",
    "fetch",
    "following",
    "give_back",
    "head_place",
    "pass_turn",
    "take_turn",
]


@gluon.jit
def following(slot, phase, STAGES: gl.constexpr):
    """Return the buffer after this one, and the phase of its barriers."""
    slot = gl.to_tensor(slot)
    phase = gl.to_tensor(phase)
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, 1 - phase, phase)


@gluon.jit
def again(x):
    """Return x in a way that what is made of it is made anew, not kept in registers till then."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def barriers(STAGES: gl.constexpr, COUNT: gl.constexpr):
    """Make a barrier for each buffer."""
    made = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(made.index(stage), count=COUNT)
    return made


@gluon.jit
def arrays(
    DTYPE: gl.constexpr, GROUPS: gl.constexpr, DIM: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Make buffers for queries, keys and values, and barriers that say they are full or free."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    q_tiles = gl.allocate_shared_memory(DTYPE, [GROUPS, 64, DIM], SHARED)
    k_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], SHARED)
    v_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], SHARED)
    k_ready = barriers(STAGES, 33)
    v_ready = barriers(STAGES, 33)
    k_free = barriers(STAGES, 128 * GROUPS)
    v_free = barriers(STAGES, 128 * GROUPS)
    fence_async_shared()  # so that the copy engine finds them made
    gl.thread_barrier()
    return q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free


@gluon.jit
def give_back(barrier):
    """Arrive for this thread alone."""
    async_copy.mbarrier_arrive(barrier, increment_count=False)


@gluon.jit
def settle(x):
    """Return x, not negative, and let nothing that waits move above what it is made of."""
    return gl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        setp.lt.f32 p, $1, 0f00000000;
        @p bar.sync 10, 128;
        mov.b32 $0, $1;
        }
        """,
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def take_turn(PART: gl.constexpr):
    """Wait until the other group has started its products; barriers 8 and 9 are nobody else's."""
    lanes = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    if PART == 0:
        gl.inline_asm_elementwise(
            "bar.sync 8, 256; mov.b32 $0, $1;", "=r,r", [lanes], dtype=gl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip
    else:
        gl.inline_asm_elementwise(
            "bar.sync 9, 256; mov.b32 $0, $1;", "=r,r", [lanes], dtype=gl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip


@gluon.jit
def pass_turn(PART: gl.constexpr):
    """Say to the other group that this one's products are under way."""
    lanes = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    if PART == 0:
        gl.inline_asm_elementwise(
            "bar.arrive 9, 256; mov.b32 $0, $1;", "=r,r", [lanes], dtype=gl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip
    else:
        gl.inline_asm_elementwise(
            "bar.arrive 8, 256; mov.b32 $0, $1;", "=r,r", [lanes], dtype=gl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip


@gluon.jit
def page_ids(row_ptr, base, COUNT: gl.constexpr, ROWS: gl.constexpr, PAGE: gl.constexpr):
    """Load the pages of a tile, all under way together."""
    ids = ()
    for p in gl.static_range(COUNT):
        ids = ids + (gl.load(row_ptr + (base + p * ROWS) // PAGE),)  # noqa: RUF005 - Gluon unpacks none
    return ids


@gluon.jit
def take_pages(
    pieces, first, ready, free, phase, pages, ids, at, column, PAGE_ROWS: gl.constexpr,
    COUNT: gl.constexpr, DIM: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Copy a tile of whole pages, or of a part of one, by the bulk copy engine.

    64 columns are what one swizzled copy may be wide: pieces are `[ROWS, 64]`.
    """
    mbarrier.wait(free, phase)
    mbarrier.expect(ready, BLOCK_N * DIM * 2)
    async_copy.mbarrier_arrive(ready, increment_count=False)
    for p in gl.static_range(COUNT):
        row = ids[p] * PAGE_ROWS + at
        for half in gl.static_range(DIM // 64):
            piece = pieces.index(first + half * COUNT + p)
            tma.async_copy_global_to_shared(pages, [row, column + half * 64], ready, piece)


@gluon.jit
def gather(
    pieces, first, ready, free, phase, ptr, row_ptr, base, end, stride_page: gl.constexpr,
    stride_slot: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Copy the rows of tokens base : base + BLOCK_N one by one, those past the end as the last.

    Pieces are `[32, 64]`, so that few addresses are held at a time.
    """
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, COPY))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, COPY))
    ids = ()
    for c in gl.static_range(BLOCK_N // 32):
        tokens = gl.maximum(gl.minimum(base + c * 32 + rows, end - 1), 0)
        page = gl.load(row_ptr + tokens // PAGE, mask=tokens < end, other=0)
        ids = ids + (page,)  # noqa: RUF005 - Gluon unpacks none
    mbarrier.wait(free, phase)
    for c in gl.static_range(BLOCK_N // 32):
        tokens = gl.maximum(gl.minimum(base + c * 32 + rows, end - 1), 0)
        at = ids[c].to(gl.int64) * stride_page + tokens % PAGE * stride_slot
        from_row = ptr + gl.expand_dims(at, 1) + gl.expand_dims(columns, 0)
        for half in gl.static_range(DIM // 64):
            piece = pieces.index(first + half * (BLOCK_N // 32) + c)
            async_copy.async_copy_global_to_shared(piece, from_row + half * 64)
    async_copy.mbarrier_arrive(ready, increment_count=False)
    mbarrier.arrive(ready, count=1)


@gluon.jit
def fetch(
    ptr, pages, row_ptr, tiles, ready, free, start, end, last, slot, phase, at, column,
    stride_page: gl.constexpr, stride_slot: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the keys or the values of tokens start : end, the last tile first; one warp.

    Returns slot and phase. start: a multiple of BLOCK_N; with start at end one tile of page 0
    comes, which nobody sees. The last tile may end inside a page, whose other slots may hold
    anything, NaN too: its rows are gathered. The rest come by whole pages where `pages`, a map for
    the copy engine, is given; at and column are the head's place in it.
    """
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    DTYPE: gl.constexpr = ptr.dtype.element_ty
    SMALL: gl.constexpr = DIM // 64 * (BLOCK_N // 32)
    small = tiles._reinterpret(DTYPE, [STAGES * SMALL, 32, 64], SHARED)  # noqa: SLF001 - Gluon's only way
    slot = gl.to_tensor(slot)
    phase = gl.to_tensor(phase)
    gather(
        small, slot * SMALL, ready.index(slot), free.index(slot), phase, ptr, row_ptr,
        start + last * BLOCK_N, end, stride_page, stride_slot, DIM, PAGE, BLOCK_N,
    )  # fmt: skip
    slot, phase = following(slot, phase, STAGES)
    if pages is None:
        for i in range(last):
            gather(
                small, slot * SMALL, ready.index(slot), free.index(slot), phase, ptr, row_ptr,
                start + (last - 1 - i) * BLOCK_N, end, stride_page, stride_slot, DIM, PAGE,
                BLOCK_N,
            )  # fmt: skip
            slot, phase = following(slot, phase, STAGES)
    else:
        ROWS: gl.constexpr = BLOCK_N if PAGE > BLOCK_N else PAGE
        COUNT: gl.constexpr = BLOCK_N // ROWS
        PIECES: gl.constexpr = DIM // 64 * COUNT
        pieces = tiles._reinterpret(DTYPE, [STAGES * PIECES, ROWS, 64], SHARED)  # noqa: SLF001 - Gluon's only way
        for i in range(last):
            base = start + (last - 1 - i) * BLOCK_N
            inside = base % PAGE if PAGE > BLOCK_N else 0
            ids = page_ids(row_ptr, base, COUNT, ROWS, PAGE)
            take_pages(
                pieces, slot * PIECES, ready.index(slot), free.index(slot), phase, pages, ids,
                at + inside, column, stride_page // stride_slot, COUNT, DIM, BLOCK_N,
            )  # fmt: skip
            slot, phase = following(slot, phase, STAGES)
    return slot, phase


@gluon.jit
def head_place(kv_head, stride_head, stride_slot: gl.constexpr):
    """Row and column of a head's first number in a map whose rows are a slot apart."""
    offset = kv_head * stride_head
    return offset // stride_slot, offset % stride_slot


@gluon.jit
def visible_of(tokens, row_pos, low, high, prefix, end, TREE: gl.constexpr):
    """Which of the tokens each row sees: those up to its own, or the cached and its ancestors."""
    token = gl.expand_dims(tokens, 0)
    if TREE:
        node = token - prefix
        word = gl.where(node < 32, gl.expand_dims(low, 1), gl.expand_dims(high, 1))
        seen = (node < 0) | (((word >> (node & 31)) & 1) != 0)
    else:
        seen = token <= gl.expand_dims(row_pos, 1)
    return seen & (token < end)


# One row's weights lie in four threads: `[64, 4]` sums, each of what one thread has.
SUMS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]],
        [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, 4],
    )
)


@gluon.jit
def softmax_of(scores, m, norm, scale_log2, visible, MASKED: gl.constexpr, BLOCK_N: gl.constexpr):
    """Take a tile of scores in; returns weights, the factor for what was before, m and norm."""
    if MASKED:
        scores = gl.where(visible, scores, float("-inf"))
    # Fours of fours, not one after another: each step waits for the one before.
    highest = gl.max(scores.reshape([64, BLOCK_N // 8, 4, 2]), 3)
    highest = gl.max(highest.reshape([64, 4, BLOCK_N // 32, 4]), 1)
    highest = gl.convert_layout(gl.max(gl.max(highest, 1), 1), m.type.layout)
    m_new = gl.maximum(m, highest * scale_log2)
    if MASKED:
        m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
    else:
        m_safe = m_new
    weights = gl.exp2(scores * scale_log2 - gl.expand_dims(m_safe, 1))
    rescale = gl.exp2(m - m_safe)
    own = gl.sum(weights.reshape([64, BLOCK_N // 8, 4, 2]), 3)
    own = gl.sum(gl.sum(own.reshape([64, 4, BLOCK_N // 32, 4]), 1), 1)
    factor = gl.convert_layout(rescale, gl.SliceLayout(1, SUMS))
    norm = norm * gl.expand_dims(factor, 1) + gl.convert_layout(own, SUMS)
    return weights, rescale, m_new, norm


@gluon.jit
def step(
    acc, weights, m, norm, slot, phase, tile, q_tile, k_tiles, v_tiles, k_ready, v_ready, k_free,
    v_free, start, end, prefix, row_pos, low, high, scale_log2, MASKED: gl.constexpr,
    TREE: gl.constexpr, PART: gl.constexpr, GROUPS: gl.constexpr, BULK: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr, SCORES: gl.constexpr,
    OUT: gl.constexpr,
):  # fmt: skip
    """Score a tile, while what the one after it weighs is added up.

    slot, phase: of the buffer that the values of the one after are in.
    """
    k_slot, k_phase = following(slot, phase, STAGES)
    nothing = gl.full([64, BLOCK_N], 0.0, gl.float32, SCORES)
    mbarrier.wait(v_ready.index(slot), phase)
    mbarrier.wait(k_ready.index(k_slot), k_phase)
    if not BULK:
        fence_async_shared()
    if GROUPS == 2:
        take_turn(PART)
    keys = k_tiles.index(k_slot).permute((1, 0))
    scores = warpgroup_mma(q_tile, keys, nothing, use_acc=False, is_async=True)
    acc = warpgroup_mma(weights, v_tiles.index(slot), acc, is_async=True)
    if GROUPS == 2:
        pass_turn(PART)
    scores, acc = warpgroup_mma_wait(num_outstanding=1, deps=[scores, acc])
    give_back(k_free.index(k_slot))
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, SCORES))
    visible = columns
    if MASKED:
        tokens = start + tile * BLOCK_N + columns
        visible = visible_of(tokens, row_pos, low, high, prefix, end, TREE)
    weighed, rescale, m, norm = softmax_of(scores, m, norm, scale_log2, visible, MASKED, BLOCK_N)
    weights = gl.convert_layout(weighed.to(DTYPE), gl.DotOperandLayout(0, OUT, 2))
    norm = settle(norm)
    acc, weights = warpgroup_mma_wait(num_outstanding=0, deps=[acc, weights])
    give_back(v_free.index(slot))
    acc = acc * gl.expand_dims(gl.convert_layout(rescale, gl.SliceLayout(1, OUT)), 1)
    return acc, weights, m, norm, k_slot, k_phase


@gluon.jit
def attend(
    q_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, slot, phase, start, end, last,
    whole, prefix, row_pos, low, high, scale_log2, TREE: gl.constexpr, PART: gl.constexpr,
    GROUPS: gl.constexpr, BULK: gl.constexpr, DIM: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, DTYPE: gl.constexpr, SCORES: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Attend with a group's 64 rows to tokens start : end; returns acc, m, norm, slot and phase.

    slot, phase: of the buffer before the first tile's. last: the last tile; whole: tiles from the
    first on that all rows see, at most last. With two groups, the second passes its turn before its
    first call, and the first takes its after its last.
    """
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, SCORES))
    m = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    norm = gl.full([64, 4], 0.0, gl.float32, SUMS)
    acc = gl.full([64, DIM], 0.0, gl.float32, OUT)
    nothing = gl.full([64, BLOCK_N], 0.0, gl.float32, SCORES)
    slot, phase = following(slot, phase, STAGES)
    mbarrier.wait(k_ready.index(slot), phase)
    fence_async_shared()
    scores = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), nothing, use_acc=False)
    give_back(k_free.index(slot))
    tokens = start + last * BLOCK_N + columns
    visible = visible_of(tokens, row_pos, low, high, prefix, end, TREE)
    weighed, _rescale, m, norm = softmax_of(scores, m, norm, scale_log2, visible, True, BLOCK_N)
    weights = gl.convert_layout(weighed.to(DTYPE), gl.DotOperandLayout(0, OUT, 2))
    if BULK:
        # The last tile alone is gathered: what the copy engine brings needs no fence.
        mbarrier.wait(v_ready.index(slot), phase)
        fence_async_shared()
    for i in range(last - whole):
        acc, weights, m, norm, slot, phase = step(
            acc, weights, m, norm, slot, phase, last - 1 - i, q_tile, k_tiles, v_tiles,
            k_ready, v_ready, k_free, v_free, start, end, prefix, row_pos, low, high, scale_log2,
            True, TREE, PART, GROUPS, BULK, BLOCK_N, STAGES, DTYPE, SCORES, OUT,
        )  # fmt: skip
    for i in range(whole):
        acc, weights, m, norm, slot, phase = step(
            acc, weights, m, norm, slot, phase, whole - 1 - i, q_tile, k_tiles, v_tiles,
            k_ready, v_ready, k_free, v_free, start, end, prefix, row_pos, low, high, scale_log2,
            False, TREE, PART, GROUPS, BULK, BLOCK_N, STAGES, DTYPE, SCORES, OUT,
        )  # fmt: skip
    mbarrier.wait(v_ready.index(slot), phase)
    fence_async_shared()
    acc = warpgroup_mma(weights, v_tiles.index(slot), acc)
    give_back(v_free.index(slot))
    norm = gl.convert_layout(gl.sum(norm, 1), gl.SliceLayout(1, SCORES))
    return acc, m, norm, slot, phase
