# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked; peers are optional)
# ruff: noqa: PLC0415, ANN001, ANN202
# (a peer is imported by the function that needs it)
"""Other people's paged attention, called on our cache: what the tables hold beside ours.

Each function returns calls over set i, by label; an import that fails is the reason that is printed
for its absence. FlashInfer alone takes a tree.
"""

from typing import Any

import torch

__all__ = ["PEERS"]


def sdpa(bench, sets, lens: list[int], q: int, tree: Any) -> dict[str, Any]:
    """SDPA on contiguous keys and values, an advantage ours do not have."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    del tree
    if q > 1 or len(set(lens)) > 1 or bench.kv != "bf16" or len(lens) * lens[0] > 1 << 20:
        return {}
    heads, kv_heads, dim = bench.heads
    shape = (2, len(lens), kv_heads, lens[0], dim)
    pairs = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(min(len(sets), 8))
    ]

    def make(backend):
        def call(i: int) -> Any:
            pair = pairs[i % len(pairs)]
            query = sets[i][0].view(len(lens), q, heads, dim).transpose(1, 2)
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(query, pair[0], pair[1], enable_gqa=True)

        return call

    return {
        "sdpa_flash": make(SDPBackend.FLASH_ATTENTION),
        "sdpa_cudnn": make(SDPBackend.CUDNN_ATTENTION),
    }


def starts(count: int, q: int) -> torch.Tensor:
    """First query row of each sequence."""
    return torch.arange(count + 1, dtype=torch.int32, device="cuda") * q


def vllm_triton(bench, sets, lens: list[int], q: int, tree: Any) -> dict[str, Any]:
    """Stock vLLM's Triton attention as its backend calls it."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    del tree
    if bench.kv != "bf16":
        return {}
    heads, kv_heads, dim = bench.heads
    # What its metadata builder makes of these: the capture size nearest to 128 / kv heads.
    sizes = [1, 2, 4, *range(8, 257, 8)]
    threshold = min(sizes, key=lambda x: abs(x - 128 // kv_heads))
    room = (max(threshold, 1), heads, 16)
    segments = [torch.empty(*room, dim, device="cuda", dtype=torch.float32)]
    segments += [torch.empty(room, device="cuda", dtype=torch.float32) for _ in range(2)]
    cu = starts(len(lens), q)
    out = torch.empty_like(sets[0][0])

    def call(i: int) -> Any:
        query, cache = sets[i]
        unified_attention(
            q=query, k=cache.key, v=cache.value, out=out, cu_seqlens_q=cu, max_seqlen_q=q,
            seqused_k=cache.seq_lens, max_seqlen_k=max(lens), softmax_scale=dim**-0.5,
            causal=True, window_size=(-1, -1), block_table=cache.block_table, softcap=0,
            q_descale=None, k_descale=None, v_descale=None, seq_threshold_3D=threshold,
            num_par_softmax_segments=16, softmax_segm_output=segments[0],
            softmax_segm_max=segments[1], softmax_segm_expsum=segments[2],
        )  # fmt: skip
        return out

    return {"vllm_triton": call}


def flash_attention_3(bench, sets, lens: list[int], q: int, tree: Any) -> dict[str, Any]:
    """FlashAttention 3 of vLLM's wheel, with its scheduler's metadata made ahead."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func
    from vllm.vllm_flash_attn.flash_attn_interface import get_scheduler_metadata

    del tree
    if bench.kv != "bf16":
        return {}
    heads, kv_heads, dim = bench.heads
    cu = starts(len(lens), q)
    out = torch.empty_like(sets[0][0])
    schedule = get_scheduler_metadata(
        batch_size=len(lens), max_seqlen_q=q, max_seqlen_k=max(lens), num_heads_q=heads,
        num_heads_kv=kv_heads, headdim=dim, cache_seqlens=sets[0][1].seq_lens,
        qkv_dtype=torch.bfloat16, cu_seqlens_q=cu, page_size=bench.page, causal=True,
    )  # fmt: skip

    def call(i: int) -> Any:
        query, cache = sets[i]
        flash_attn_varlen_func(
            q=query, k=cache.key, v=cache.value, out=out, cu_seqlens_q=cu, max_seqlen_q=q,
            seqused_k=cache.seq_lens, max_seqlen_k=max(lens), softmax_scale=dim**-0.5,
            causal=True, block_table=cache.block_table, scheduler_metadata=schedule,
            fa_version=3,
        )  # fmt: skip
        return out

    return {"flash_attn_3": call}


def pages_in_order(cache, lens: list[int], page: int) -> tuple[Any, Any, Any]:
    """Give FlashInfer's index: indptr and last page's fill on the host, page ids on the GPU."""
    counts = [-(-n // page) for n in lens]
    indptr = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()
    used = [cache.block_table[b, :count] for b, count in enumerate(counts)]
    last = torch.tensor([(n - 1) % page + 1 for n in lens], dtype=torch.int32)
    return indptr, torch.cat(used).contiguous(), last


def tree_mask(tree: torch.Tensor, lens: list[int], q: int) -> torch.Tensor:
    """Write ancestor bits out as FlashInfer's mask, `[q, length]` a sequence, in one line."""
    bits = (tree.view(len(lens), q, 1) >> torch.arange(q, device="cuda")) & 1
    masks = []
    for b, length in enumerate(lens):
        mask = torch.ones(q, length, dtype=torch.bool, device="cuda")
        mask[:, length - q :] = bits[b].bool()
        masks.append(mask.flatten())
    return torch.cat(masks)


_WORKSPACE: list[torch.Tensor] = []


def workspace() -> torch.Tensor:
    """Room that FlashInfer's calls share, one after another."""
    if not _WORKSPACE:
        _WORKSPACE.append(torch.zeros(384 << 20, dtype=torch.uint8, device="cuda"))
    return _WORKSPACE[0]


def flashinfer(bench, sets, lens: list[int], q: int, tree: Any) -> dict[str, Any]:
    """FlashInfer, planned ahead: its decode by tensor cores, and its prefill for several tokens."""
    import flashinfer as fi

    if bench.kv != "bf16":
        return {}
    heads, kv_heads, dim = bench.heads

    def make(i: int, backend: str) -> Any:
        query, cache = sets[i]
        index = pages_in_order(cache, lens, bench.page)
        pair = (cache.key.transpose(1, 2), cache.value.transpose(1, 2))
        types = {"q_data_type": query.dtype, "kv_data_type": query.dtype}
        if q == 1:
            run = fi.BatchDecodeWithPagedKVCacheWrapper(workspace(), "HND", use_tensor_cores=True)
            run.plan(*index, heads, kv_heads, dim, bench.page, **types)
        else:
            run = fi.BatchPrefillWithPagedKVCacheWrapper(workspace(), "HND", backend=backend)
            mask = None if tree is None else tree_mask(tree, lens, q)
            run.plan(
                starts(len(lens), q).cpu(), *index, heads, kv_heads, dim, bench.page,
                causal=tree is None, custom_mask=mask, **types,
            )  # fmt: skip
        out = torch.empty_like(query)
        return lambda: run.run(query, pair, out=out)

    made: dict[str, Any] = {}
    # Its kernel for Hopper takes no mask, and is its prefill's.
    for backend in ("fa2", "fa3") if q >= 512 else ("fa2",):
        calls = [make(i, backend) for i in range(len(sets))]
        made[f"flashinfer_{backend}"] = lambda i, calls=calls: calls[i]()
    return made


PEERS = {
    "sdpa": sdpa,
    "vllm_triton": vllm_triton,
    "flash_attn_3": flash_attention_3,
    "flashinfer": flashinfer,
}
