# pyright: basic, reportMissingImports=false
# (vLLM, torch and transformers are not installed where types are checked)
"""Our attention backend inside real vLLM: greedy equality with the stock ones, and serving speed.

    python benchmarks/bench_vllm.py train MODEL --seconds 40
    python benchmarks/bench_vllm.py generate MODEL CUSTOM --out CUSTOM.json
    python benchmarks/bench_vllm.py compare TRITON_ATTN.json CUSTOM.json
    python benchmarks/bench_vllm.py serve TRITON_ATTN=8001 CUSTOM=8002 --model NAME --tokenizer DIR

`train` makes a small Llama from the Python sources of this environment, bytes as tokens: random
weights give logits that any rounding turns over, and prove nothing. `generate` needs the plugin
installed beside vLLM. `serve` runs `vllm bench serve` over engines that are up already, in turn and
several times, so that a difference can be told from the spread.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import io
import json
import math
import os
import random
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = 64
NEW_TOKENS = 64


def sources(limit: int) -> tuple[bytes, bytes]:
    """Return Python source text for training, and some files held out."""
    root = Path(sysconfig.get_paths()["purelib"])
    files = sorted(root.rglob("*.py"))
    random.Random(0).shuffle(files)
    texts: list[bytes] = []
    size = 0
    for file in files:
        text = file.read_bytes()
        if 500 < len(text) < 200_000:
            texts.append(text + b"\0")
            size += len(text)
        if size > limit:
            break
    return b"".join(texts[40:]), b"".join(texts[:40])


def prompts_from(text: bytes) -> list[list[int]]:
    """Cut prompts of 32 to 1,410 bytes; some begin alike, for the prefix cache."""
    rng = random.Random(1)
    made: list[list[int]] = []
    for i in range(PROMPTS):
        length = 32 + int(1400 * (i / 63) ** 1.5)
        start = rng.randrange(0, len(text) - 2000)
        prompt = list(text[start : start + length])
        if i % 4 == 0 and length > 300:
            prompt[:256] = text[:256]
        made.append(prompt)
    return made


def train(options: argparse.Namespace) -> None:
    """Train a Llama of 54 M parameters for so many seconds, and save it with its prompts."""
    import torch  # noqa: PLC0415 - only where it is needed
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - only where it is needed

    text, held_out = sources(40_000_000)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).cuda()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=768, intermediate_size=2048, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=2, head_dim=128, max_position_embeddings=4096,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    rows, length = 48, 1024
    began, step, loss = time.perf_counter(), 0, None
    while (done := (time.perf_counter() - began) / options.seconds) < 1:
        rate = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100) * rate
        at = torch.randint(0, data.numel() - length - 1, (rows, 1), device="cuda")
        batch = data[at + torch.arange(length + 1, device="cuda")].long()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), batch[:, 1:].flatten()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
    assert loss is not None
    print(f"{step} steps, {float(loss) / math.log(2):.3f} bits a byte")
    model.eval().to(torch.bfloat16).save_pretrained(options.model)
    (options.model / "prompts.json").write_text(json.dumps(prompts_from(held_out)))


@contextlib.contextmanager
def kernels_run(out: Path | None) -> Iterator[None]:
    """Write how often each attention kernel ran on the GPU meanwhile, graphs' launches too."""
    if out is None:
        yield
        return
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - only where it is needed

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        yield
    words = ("prefill", "decode", "attn", "attention", "flash", "merge", "write")
    kept = {each.key[:120]: each.count for each in found.key_averages()}
    kept = {name: n for name, n in kept.items() if any(word in name.lower() for word in words)}
    out.write_text(json.dumps(kept, indent=1) + "\n")


def generate(options: argparse.Namespace) -> None:
    """Save greedy tokens and the top log probabilities at each."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - only where it is needed

    prompts = json.loads((options.model / "prompts.json").read_text())
    llm = LLM(
        model=str(options.model), dtype=options.dtype, attention_backend=options.backend,
        skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=options.at_a_time,
        max_num_batched_tokens=512, enable_chunked_prefill=True, enable_prefix_caching=True,
        kv_cache_memory_bytes=2 << 30, gpu_memory_utilization=0.05, seed=0,
    )  # fmt: skip
    greedy = SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, logprobs=8, ignore_eos=True, detokenize=False
    )
    rows: list[dict[str, Any]] = []
    asked = [{"prompt_token_ids": p} for p in prompts]
    with kernels_run(options.kernels):
        answers = llm.generate(asked, greedy)
    for answer in answers:
        output = answer.outputs[0]
        tops = [{token: seen.logprob for token, seen in at.items()} for at in output.logprobs]
        rows.append({"tokens": list(output.token_ids), "top": tops})
    options.out.write_text(json.dumps(rows))


def gap(row: dict[str, Any], at: int, other: int) -> float:
    """Log probability of the token chosen less that of the other's choice; inf out of the top."""
    top = row["top"][at]
    return top[str(row["tokens"][at])] - top.get(str(other), -math.inf)


def compare(options: argparse.Namespace) -> None:
    """Print how many outputs are identical, and how near a tie the others part."""
    first, second = (json.loads(path.read_text()) for path in (options.first, options.second))
    apart: list[dict[str, Any]] = []
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        pairs = enumerate(zip(a["tokens"], b["tokens"], strict=True))
        at = next((k for k, (x, y) in pairs if x != y), None)
        if at is not None:
            seen = gap(a, at, b["tokens"][at]), gap(b, at, a["tokens"][at])
            apart.append({"prompt": i, "token": at, "gap_first": seen[0], "gap_second": seen[1]})
    print(json.dumps({"prompts": len(first), "identical": len(first) - len(apart), "apart": apart}))


def serve(options: argparse.Namespace) -> None:
    """Run `vllm bench serve` against each engine, `--rounds` times, the order turned each time."""
    from vllm.benchmarks.serve import add_cli_args, main_async  # noqa: PLC0415 - only where it is needed
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - only where it is needed

    def once(port: str, seed: int) -> dict[str, Any]:
        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        flags = (
            f"--backend openai --endpoint /v1/completions --host 127.0.0.1 --port {port} "
            f"--model {options.model} --tokenizer {options.tokenizer} --dataset-name random "
            "--random-input-len 512 --random-output-len 128 --num-prompts 128 --ignore-eos "
            f"--max-concurrency 64 --seed {seed} --disable-tqdm --percentile-metrics ttft,tpot,itl"
        )
        with contextlib.redirect_stdout(io.StringIO()):
            return asyncio.run(main_async(parser.parse_args(flags.split())))

    engines = [engine.split("=") for engine in options.engines]
    for _, port in engines:  # the first prompts meet compilations
        once(port, 999)
    rows: list[dict[str, Any]] = []
    for k in range(options.rounds):
        turn = k % len(engines)
        for name, port in engines[turn:] + engines[:turn]:
            got = once(port, k + 1)
            row = {"backend": name, "round": k, "output_tok_s": got["output_throughput"]}
            for what in ("mean_tpot_ms", "median_tpot_ms", "median_ttft_ms", "median_itl_ms"):
                row[what] = got[what]
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("train", help="make a small model that has learnt something")
    one.add_argument("model", type=Path)
    one.add_argument("--seconds", type=float, default=40.0)
    one.set_defaults(run=train)
    one = commands.add_parser("generate", help="greedy outputs of one attention backend")
    one.add_argument("model", type=Path)
    one.add_argument("backend")
    one.add_argument("--dtype", default="bfloat16")
    one.add_argument("--at-a-time", type=int, default=8)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--kernels", type=Path, help="write which attention kernels ran, by profiler")
    one.set_defaults(run=generate)
    one = commands.add_parser("compare", help="two files of generate")
    one.add_argument("first", type=Path)
    one.add_argument("second", type=Path)
    one.set_defaults(run=compare)
    one = commands.add_parser("serve", help="vllm bench serve, repeated over several engines")
    one.add_argument("engines", nargs="+", metavar="NAME=PORT")
    one.add_argument("--model", required=True)
    one.add_argument("--tokenizer", required=True)
    one.add_argument("--rounds", type=int, default=4)
    one.add_argument("--out", type=Path)
    one.set_defaults(run=serve)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
