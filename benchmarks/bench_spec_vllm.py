# pyright: basic, reportMissingImports=false
# (vLLM is not installed where types are checked)
# ruff: noqa: ANN001, ANN201
# (scripts; what is passed around is said where it is made)
"""One vLLM engine with one way of speculation, over a file of scenes; run once for each way.

A scene is `{"name", "prompts": [[token ids]], "max_tokens", "temperature", "batch"}`. Batch 1 sends
one prompt after another; more sends so many at a time. Engines load side by side, and measure one
at a time, holding `--lock`. Written as JSON: per scene seconds, output tokens, the outputs, and
what the engine's own `vllm:spec_decode_*` counters grew by.
"""

import argparse
import fcntl
import json
import time
from pathlib import Path

from vllm import LLM, SamplingParams


def counters(llm):
    """Read the engine's speculation counters; a vector's members get their place behind."""
    found = {}
    for metric in llm.get_metrics():
        if "spec_decode" not in metric.name:
            continue
        if hasattr(metric, "values"):
            for place, value in enumerate(metric.values):
                found[f"{metric.name}.{place}"] = found.get(f"{metric.name}.{place}", 0) + value
        elif hasattr(metric, "value"):
            found[metric.name] = found.get(metric.name, 0) + metric.value
    return found


def run_scene(llm, scene):
    """Run one scene and return what it came to."""
    how = SamplingParams(
        temperature=scene["temperature"],
        max_tokens=scene["max_tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=scene.get("logprobs"),
        seed=scene.get("seed"),
    )
    prompts = [{"prompt_token_ids": ids} for ids in scene["prompts"]]
    step = scene["batch"]
    before, started, outputs, gaps = counters(llm), time.perf_counter(), [], []
    for at in range(0, len(prompts), step):
        for answer in llm.generate(prompts[at : at + step], how, use_tqdm=False):
            outputs.append(list(answer.outputs[0].token_ids))
            if answer.outputs[0].logprobs:
                top = [
                    sorted((x.logprob for x in each.values()), reverse=True)
                    for each in answer.outputs[0].logprobs
                ]
                gaps.append(
                    [round(each[0] - each[1], 4) if len(each) > 1 else None for each in top]
                )
    seconds, after = time.perf_counter() - started, counters(llm)
    tokens = sum(map(len, outputs))
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "grew": {name: value - before.get(name, 0) for name, value in after.items()},
        "outputs": outputs,
        **({"gaps": gaps} if gaps else {}),
    }


def main():
    """Load, wait for the lock, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--scenes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--llm", default="{}", help="JSON of more arguments for LLM")
    parser.add_argument("--only", default="", help="comma-separated names of scenes")
    parser.add_argument("--ready", type=Path, help="made when loaded; measure when --go exists")
    parser.add_argument("--go", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    llm = LLM(
        model=arguments.model,
        skip_tokenizer_init=True,
        disable_log_stats=False,
        **json.loads(arguments.llm),
    )
    told = {"load_s": time.perf_counter() - started, "scenes": {}}
    if arguments.ready:
        arguments.ready.touch()
    while arguments.go and not arguments.go.exists():
        time.sleep(0.2)
    scenes = json.loads(arguments.scenes.read_text())
    if "speculative_config" in arguments.llm:
        # How close a choice was is asked of the plain engine alone.
        scenes = [{**scene, "logprobs": None} for scene in scenes]
    wanted = set(filter(None, arguments.only.split(",")))
    with arguments.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_scene(llm, {**scenes[0], "prompts": scenes[0]["prompts"][:2], "max_tokens": 32})
        for scene in scenes:
            if wanted and scene["name"] not in wanted:
                continue
            told["scenes"][scene["name"]] = run_scene(llm, scene)
            arguments.out.write_text(json.dumps(told))
            shown = told["scenes"][scene["name"]]
            print(
                arguments.out.stem,
                scene["name"],
                round(shown["tokens_per_s"]),
                shown["grew"],
                flush=True,
            )


if __name__ == "__main__":
    main()
