# pyright: basic, reportMissingImports=false
# (torch and vLLM are not installed where types are checked)
# ruff: noqa: ANN001, ANN201, ANN202
# (scripts; what is passed around is said where it is made)
"""Whether vLLM's FlashAttention 3 attends rightly in a graph captured for longer rows.

With cudagraph_mode FULL, vLLM captures a graph for N tokens with a longest row of N, and replays it
for whatever rows have N tokens together, having put a schedule for those rows where the captured
kernel reads it. A step whose rows have one token each asks for a schedule of rows of one; for heads
up to 64 and over 128 wide FlashAttention 3 takes those for not causal, and leaves a part out that
the captured causal kernel reads. Prints, for head widths, rows, and what the schedule was asked
for, how far the output is from attention in fp32.

    python benchmarks/check_full_graphs.py [--out FILE]
"""

import argparse
import json
from pathlib import Path

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

HEADS, KV_HEADS, BLOCK, MOST_ROWS = 8, 4, 16, 128


def rounded(rows):
    """Rows as the schedule has room for them."""
    return (rows + 3) // 4 * 4


def right(q, cache, table, lengths, head):
    """Attention of rows of one token in fp32."""
    outs = []
    for row, length in enumerate(lengths.tolist()):
        k, v = (
            side[table[row].long()].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, 1)
            for side in (x.float() for x in cache)
        )
        scores = torch.einsum("hd,lhd->hl", q[row].float(), k) * head**-0.5
        outs.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v))
    return torch.stack(outs)


def measure(head, rows, tokens, asked):
    """Capture for `tokens` with the longest row `tokens`, replay rows of one asked as `asked`."""
    torch.manual_seed(rows)
    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    q = torch.randn(tokens, HEADS, head, **kind)
    cache = [torch.randn(4096, BLOCK, KV_HEADS, head, **kind) for _ in range(2)]
    table = torch.randint(1, 4096, (tokens, 64), dtype=torch.int32, device="cuda")
    lengths = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    starts = torch.full((tokens + 1,), rows, dtype=torch.int32, device="cuda")
    starts[: rows + 1] = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
    room = torch.zeros(1 + rounded(MOST_ROWS) * 4, dtype=torch.int32, device="cuda")
    out = torch.zeros_like(q)

    def schedule(longest, longest_kv):
        told = get_scheduler_metadata(
            batch_size=tokens, max_seqlen_q=longest, max_seqlen_k=longest_kv, num_heads_q=HEADS,
            num_heads_kv=KV_HEADS, headdim=head, cache_seqlens=lengths, qkv_dtype=torch.bfloat16,
            cu_seqlens_q=starts, page_size=BLOCK, causal=True, num_splits=32,
        )  # fmt: skip
        room[: len(told)] = told
        room[len(told) :] = 0
        return len(told)

    def attend(size):
        flash_attn_varlen_func(
            q=q, k=cache[0], v=cache[1], out=out, cu_seqlens_q=starts, max_seqlen_q=tokens,
            seqused_k=lengths, max_seqlen_k=1024, causal=True, block_table=table,
            window_size=[-1, -1], scheduler_metadata=room[:size], num_splits=32, fa_version=3,
        )  # fmt: skip

    lengths[:rows] = torch.linspace(66, 300, rows, device="cuda").to(torch.int32)
    size = schedule(tokens, 1024)
    attend(size)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(size)
    used, errors = schedule(asked or tokens, 300), []
    for _ in range(3):  # layers of one step read one schedule
        out.fill_(7.0)
        graph.replay()
        torch.cuda.synchronize()
        wanted = right(q[:rows], cache, table, lengths[:rows], head)
        errors.append(round(float((out[:rows].float() - wanted).abs().max()), 4))
    return {
        "head": head, "rows": rows, "graph_tokens": tokens, "schedule_for_rows_of": asked or tokens,
        "schedule_captured": size, "schedule_replayed": used, "furthest_from_fp32": errors,
    }  # fmt: skip


def main():
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = []
    for head in (64, 96, 128, 256):
        for rows, tokens in ((1, 1), (1, 9), (2, 2), (3, 4), (3, 9), (25, 32)):
            for asked in (0, 1, 2):
                found.append(measure(head, rows, tokens, min(asked, tokens)))
                print(json.dumps(found[-1]), flush=True)
                if arguments.out:
                    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
