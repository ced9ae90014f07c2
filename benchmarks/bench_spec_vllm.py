# pyright: basic, reportMissingImports=false
# (vLLM is not installed where types are checked)
# ruff: noqa: ANN001, ANN201
# (scripts; what is passed around is said where it is made)
"""One vLLM engine with one way of speculation, over a file of scenes; run once for each way.

A scene is `{"name", "prompts": [[token ids]], "max_tokens", "temperature", "batch"}`, of
spec_scenes.py; "plain": true says that it is for an engine without speculation alone. `batch`
prompts are kept in flight: where one ends the next begins. Tokens are counted up to when the last
prompt has begun, since fewer are in flight from then on (over all where every prompt fits in).
Engines load side by side, and measure one at a time, holding `--lock`. Written as JSON: per scene
seconds, output tokens, the outputs, and what the engine's own `vllm:spec_decode_*` counters grew
by.

With `--turns FOLDER` an engine measures all its scenes again for each file FOLDER/NAME.0,
FOLDER/NAME.1, ... (NAME is that of `--out`) once it is there, says so by FOLDER/NAME.0.done, and
ends with FOLDER/end: so ways can be measured in turns while all stay loaded.
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


def gaps_of(output):
    """By how much the likeliest token's log probability leads at each place."""
    top = [sorted((x.logprob for x in each.values()), reverse=True) for each in output.logprobs]
    return [round(each[0] - each[1], 4) if len(each) > 1 else None for each in top]


def keep_full(engine, scene, how):
    """Answer all prompts, `batch` at a time; also seconds and tokens until the last one began."""
    started, waiting = time.perf_counter(), list(enumerate(scene["prompts"]))[::-1]
    counts, done, full = {}, {}, (0.0, 0)
    while waiting or len(done) < len(counts):
        while waiting and len(counts) - len(done) < scene["batch"]:
            number, ids = waiting.pop()
            counts[f"{scene['name']} {number}"] = 0
            engine.add_request(f"{scene['name']} {number}", {"prompt_token_ids": ids}, how)
        if not waiting and not full[0]:
            full = (time.perf_counter() - started, sum(counts.values()))
        for answer in engine.step():
            counts[answer.request_id] = len(answer.outputs[0].token_ids)
            if answer.finished:
                done[answer.request_id] = answer
    return [done[name] for name in counts], full


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
    before, started = counters(llm), time.perf_counter()
    answers, full = keep_full(llm.llm_engine, scene, how)
    seconds, after = time.perf_counter() - started, counters(llm)
    outputs = [list(answer.outputs[0].token_ids) for answer in answers]
    gaps = [gaps_of(answer.outputs[0]) for answer in answers if answer.outputs[0].logprobs]
    tokens = sum(map(len, outputs))
    if len(outputs) <= scene["batch"]:
        full = (seconds, tokens)
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_s": full[1] / full[0],
        "grew": {name: value - before.get(name, 0) for name, value in after.items()},
        "outputs": outputs,
        **({"gaps": gaps} if gaps else {}),
    }


def in_turns(llm, scenes, arguments):
    """Measure all scenes each time the next turn's file is there."""
    told, name = {"turns": []}, arguments.out.stem
    while True:
        mark = arguments.turns / f"{name}.{len(told['turns'])}"
        while not mark.exists():
            if (arguments.turns / "end").exists():
                return
            time.sleep(0.05)
        if not told["turns"]:
            run_scene(llm, {**scenes[0], "prompts": scenes[0]["prompts"][:2], "max_tokens": 32})
        found = {scene["name"]: run_scene(llm, scene) for scene in scenes}
        told["turns"].append(found)
        arguments.out.write_text(json.dumps(told))
        rates = {scene: round(each["tokens_per_s"]) for scene, each in found.items()}
        print(mark.name, json.dumps(rates), flush=True)
        mark.with_name(f"{mark.name}.done").touch()


def main():
    """Load, wait for the lock, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--scenes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lock", type=Path, default=Path("/dev/null"))
    parser.add_argument("--llm", default="{}", help="JSON of more arguments for LLM")
    parser.add_argument("--only", default="", help="names of scenes, parted by ;")
    parser.add_argument("--ready", type=Path, help="made when loaded; measure when --go exists")
    parser.add_argument("--go", type=Path)
    parser.add_argument("--when", type=Path, nargs="*", default=[], help="load when these exist")
    parser.add_argument("--turns", type=Path, help="folder of the turns' files")
    arguments = parser.parse_args()
    while not all(path.exists() for path in arguments.when):
        time.sleep(0.2)
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
        scenes = [scene for scene in scenes if not scene.get("plain")]
    wanted = set(filter(None, arguments.only.split(";")))
    if arguments.turns:
        in_turns(llm, [s for s in scenes if not wanted or s["name"] in wanted], arguments)
        return
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
