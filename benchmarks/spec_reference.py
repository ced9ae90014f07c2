# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN201
# (scripts; what is passed around is said where it is made)
"""Every way of speculation in the reference engine, on a target and heads that were trained.

    python benchmarks/spec_reference.py DIR

DIR as `spec_target.py` and `forebay spec train` leave it: target/, eagle3/, eagle/, medusa/, and
scenes.json as for bench_spec_vllm.py. Prints and writes DIR/reference.json: for each way accepted
guesses by depth, tokens a run of the target, tokens/s against the plain loop's, and whether the
output is the plain loop's.
"""

import argparse
import json
import time
from array import array
from pathlib import Path

import torch

from forebay.kernels.speculative.contexts import SEPARATOR, Contexts
from forebay.kernels.speculative.drafter import Drafter
from forebay.kernels.speculative.heads.eagle import Eagle1Head, Eagle3Head
from forebay.kernels.speculative.heads.medusa import MedusaHeads
from forebay.kernels.speculative.llama import load_llama
from forebay.kernels.speculative.reference.eagle import Eagle
from forebay.kernels.speculative.reference.engine import Engine, Plain, Request
from forebay.kernels.speculative.reference.laws import Sampling
from forebay.kernels.speculative.reference.lookahead import Lookahead
from forebay.kernels.speculative.reference.lookup import (
    Combined,
    PromptLookup,
    Retrieval,
    Suffix,
)
from forebay.kernels.speculative.reference.medusa import Medusa


def methods(folder, target, kind, device, texts):
    """All ways that the folder has heads for."""
    told = {"dtype": kind, "device": device}
    yield PromptLookup()
    yield Suffix()
    contexts = Contexts.of(texts)
    yield Retrieval(contexts)
    yield Combined(Drafter(most=8, store=lambda: contexts))
    yield Lookahead()
    if (folder / "medusa").exists():
        heads = MedusaHeads.load(folder / "medusa", **told).requires_grad_(False)
        yield Medusa(heads)
        chain = Medusa(heads, paths=[(0,) * n for n in range(1, len(heads.blocks) + 1)])
        chain.name = "medusa-chain"
        yield chain
    for name, made in (("eagle", Eagle1Head), ("eagle3", Eagle3Head)):
        if not (folder / name).exists():
            continue
        head = made.load(folder / name, **told).requires_grad_(False)
        yield Eagle(head, target, depth=4)
        yield Eagle(head, target, depth=5, width=6, nodes=24)


def go(target, method, requests):
    """Run requests one by one, after one to warm up."""
    Engine(target, method).run(requests[:1])
    engine = Engine(target, method)
    started = time.perf_counter()
    outputs = [engine.run([request])[0] for request in requests]
    return engine.counts, time.perf_counter() - started, outputs


def main():
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--temperatures", default="0")
    parser.add_argument("--heads", action="store_true", help="ways that need a head alone")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", default="reference.json")
    arguments = parser.parse_args()
    folder = arguments.folder
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = getattr(torch, arguments.dtype) if device == "cuda" else torch.float32
    target = load_llama(folder / "target", dtype=kind, device=device)
    scenes = json.loads((folder / "scenes.json").read_text())
    prompts = scenes[0]["prompts"][: 2 if arguments.tiny else arguments.prompts]
    most = 24 if arguments.tiny else arguments.tokens
    raw = array(
        "I", (folder / "train.tokens").read_bytes()[: 4 * (20_000 if arguments.tiny else 4_000_000)]
    )
    store = array("I", [SEPARATOR]) + raw
    rows = []
    for temperature in map(float, arguments.temperatures.split(",")):
        requests = [
            Request(tuple(p), most, Sampling(temperature=temperature, seed=n))
            for n, p in enumerate(prompts)
        ]

        counts, plain_s, wanted = go(target, Plain(), requests)
        print(f"t={temperature} plain {counts.emitted / plain_s:.0f} tokens/s", flush=True)
        for method in methods(folder, target, kind, device, store):
            if arguments.heads and not hasattr(method, "head") and not hasattr(method, "heads"):
                continue
            counts, seconds, got = go(target, method, requests)
            told = {
                "temperature": temperature,
                "method": method.name,
                "accepted_by_depth": [round(n / max(counts.drafts, 1), 3) for n in counts.by_depth],
                "accepted_a_draft": round(counts.accepted / max(counts.drafts, 1), 3),
                "guesses_a_draft": round(counts.guesses / max(counts.drafts, 1), 2),
                "tokens_a_run": round(counts.emitted / counts.runs, 3),
                "speed_up": round(plain_s / seconds, 3),
                "draft_share": round(counts.draft_s / seconds, 3),
                "same_outputs": sum(a == b for a, b in zip(got, wanted, strict=True)),
                "outputs": len(wanted),
                "plain_tokens_per_s": round(sum(map(len, wanted)) / plain_s, 1),
            }
            rows.append(told)
            print(json.dumps(told), flush=True)
            (folder / arguments.out).write_text(
                json.dumps(
                    {
                        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                        "dtype": str(kind),
                        "rows": rows,
                    }
                )
            )


if __name__ == "__main__":
    main()
