# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""The smallest case of each op, each against its reference, for a memory checker.

compute-sanitizer --tool memcheck python benchmarks/sanitize_kernels.py
compute-sanitizer --tool racecheck python benchmarks/sanitize_kernels.py trees prefill
"""

import sys
from dataclasses import replace

import torch

from forebay.kernels.attention.decode import decode_config, paged_decode
from forebay.kernels.attention.kv_write import write_cache
from forebay.kernels.attention.layout import Rule
from forebay.kernels.attention.merge import merge_states
from forebay.kernels.attention.mla import mla_decode, mla_plan
from forebay.kernels.attention.prefill import paged_prefill
from forebay.kernels.attention.reference import attention_reference, mla_decode_reference
from forebay.kernels.sampling.rejection import RejectionConfig, rejection_sample
from forebay.kernels.testing import Case, assert_close, dequantised, make_case, quantise_cache

DTYPE = torch.bfloat16


def small(seq_lens: list[int], query_lens: list[int] | int = 1) -> Case:
    """Make a case of 8 / 2 heads of 128."""
    return make_case(
        seq_lens=seq_lens, query_lens=query_lens, dim=128, heads=8, kv_heads=2, dtype=DTYPE,
        layout="side_by_side",
    )  # fmt: skip


def decode() -> None:
    """Cut both ways, merged on the way and afterwards, and over 8-bit caches."""
    case = small([37, 0, 300])
    for dtype in (None, torch.int8, torch.float8_e4m3fn):
        cache = quantise_cache(case.cache, dtype) if dtype else case.cache
        want, _ = attention_reference(
            query=case.query, cache=dequantised(cache) if dtype else cache, cu_query=case.cu_query
        )
        config = decode_config(query=case.query, cache=cache)
        for policy in ("occupancy", "balanced"):
            for fused in (0, 99):
                got = paged_decode(
                    query=case.query, cache=cache, max_seq_len=300, policy=policy,
                    config=replace(config, fused=fused),
                )  # fmt: skip
                assert_close(got, want, DTYPE)


def trees() -> None:
    """Trees of 16 and of 40 nodes of 4 heads: one group of rows, and two; cut and whole."""
    for nodes in (16, 40):
        case = make_case(
            seq_lens=[300, nodes, 190], query_lens=nodes, dim=128, heads=8, kv_heads=2,
            dtype=DTYPE, layout="side_by_side",
        )  # fmt: skip
        bits = torch.tensor([(2 << i) - 1 for i in range(nodes)] * 3, device="cuda")
        rule = Rule(tree=bits)
        want, _ = attention_reference(query=case.query, cache=case.cache, rule=rule)
        for policy in ("occupancy", "balanced"):
            got = paged_decode(
                query=case.query, cache=case.cache, max_seq_len=300, max_query_len=nodes,
                rule=rule, policy=policy,
            )  # fmt: skip
            assert_close(got, want, DTYPE)


def prefill() -> None:
    """Two chunks, one over a prefix, then a write beside them."""
    case = small([90, 400], [20, 33])
    got = paged_prefill(query=case.query, cache=case.cache, cu_query=case.cu_query)
    want, _ = attention_reference(query=case.query, cache=case.cache, cu_query=case.cu_query)
    assert_close(got, want, DTYPE)
    rows = torch.randn(5, 2, 128, device="cuda", dtype=DTYPE)
    slots = torch.tensor([3, -1, 9, 11, 40], device="cuda")
    write_cache(
        key=rows, value=rows, key_cache=case.cache.key, value_cache=case.cache.value, slots=slots
    )


def mla() -> None:
    """Few heads and many, which run different kernels on Hopper."""
    latent = torch.randn(24, 64, 576, device="cuda", dtype=DTYPE)
    lens = torch.tensor([70, 0, 300], dtype=torch.int32, device="cuda")
    table = torch.arange(24, dtype=torch.int32, device="cuda").view(3, 8)
    for heads in (16, 128):
        query = torch.randn(3, heads, 576, device="cuda", dtype=DTYPE)
        want, _ = mla_decode_reference(
            query=query, latent=latent, seq_lens=lens, block_table=table, scale=0.07
        )
        for plan in (None, mla_plan(query=query, latent=latent, seq_lens=lens)):
            got = mla_decode(
                query=query, latent=latent, seq_lens=lens, block_table=table, max_seq_len=300,
                scale=0.07, plan=plan,
            )  # fmt: skip
            assert_close(got, want, DTYPE)


def merge() -> None:
    """Merge a state with itself."""
    out = torch.randn(8, 8, 128, device="cuda", dtype=DTYPE)
    lse = torch.randn(8, 8, device="cuda")
    assert_close(merge_states(out_a=out, lse_a=lse, out_b=out, lse_b=lse), out.double(), DTYPE)


def reject() -> None:
    """Judge three sequences, one of them greedy, over two chunks of a vocabulary."""
    logits = torch.randn(9, 500, device="cuda")
    logits[:, 7] += 20  # what every row draws
    ends = torch.tensor([0, 3, 5, 6], dtype=torch.int32, device="cuda")
    out, accepted = rejection_sample(
        logits=logits, draft=torch.full((6,), 7, dtype=torch.int32, device="cuda"), cu_draft=ends,
        most=3, temperature=torch.tensor([0.5, 0.0, 0.5], device="cuda"),
        seeds=torch.arange(3, device="cuda"), places=torch.arange(3, device="cuda"),
        config=RejectionConfig(chunk=256, num_warps=4),
    )  # fmt: skip
    assert out.tolist() == [[7, 7, 7, 7], [7, 7, 7, -1], [7, 7, -1, -1]]
    assert accepted.tolist() == [3, 2, 1]


if __name__ == "__main__":
    for check in (decode, trees, prefill, mla, merge, reject):
        if check.__name__ in sys.argv[1:] or not sys.argv[1:]:
            check()
    torch.cuda.synchronize()
    print("every case ran and is right")
