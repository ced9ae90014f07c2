# pyright: basic, reportMissingImports=false
# (vLLM is not installed where types are checked)
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204, PLC0415
# (scripts; what is passed around is said where it is made)
"""Where a speculating vLLM parts from the plain one, by how much, and in which step.

    python benchmarks/spec_equal.py run --model M --scenes scenes.json --out plain.json \
        --runs '[{"name": "b25", "scene": "equal", "batch": 25}]' --llm '{"dtype": "bfloat16"}'
    python benchmarks/spec_equal.py table plain.json:b25 ours.json:b25 ... --out equal.json

`run` answers a scene's prompts greedily, `batch` in flight, in an order drawn by `shuffle`, and
keeps the five largest logits at each place (the engine gives logits themselves, no log
probabilities), which step of the engine each token came from, and how many rows and guesses that
step had. `table` takes the run to compare with first and tells of each other one: how many outputs
are the same; for those that are not, both sides' logits at the place where they part; and how far
the same tokens' logits lie apart at all places before that.

Two drafters for `custom_class`: `spec_equal.Adversary` knows the plain outputs (the file that
SPEC_EQUAL_SCRIPT names) and guesses right or wrong, long or short or in no row at all, by lot;
`spec_equal.Unguarded` is ours, but under graphs that it refuses.
"""

import argparse
import copy
import json
import os
import random
import statistics
import time
from pathlib import Path

try:
    from forebay.kernels.plugins.vllm_drafter import ForebayDrafter
except ImportError:  # `table` needs none
    ForebayDrafter = object


class Adversary:
    """Right and wrong guesses of any length, by lot; in two of five steps none at all."""

    def __init__(self, vllm_config):
        self.answers, self.lengths = {}, []
        self.most = vllm_config.speculative_config.num_speculative_tokens
        self.vocab = vllm_config.model_config.get_vocab_size()
        self.rng = random.Random(1)

    def load_model(self, *_args, **_kwargs):
        """There is none."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        """Guess for all rows, or for none."""
        del slot_mappings
        if not self.answers:
            told = json.loads(Path(os.environ["SPEC_EQUAL_SCRIPT"]).read_text())
            self.answers = {tuple(prompt): answer for prompt, answer in told}
            self.lengths = sorted({len(prompt) for prompt, _ in told}, reverse=True)
        bare = self.rng.random() < 0.4
        return [
            [] if bare or not new else self._guess(token_ids_cpu[row, : num_tokens_no_spec[row]])
            for row, new in enumerate(sampled_token_ids)
        ]

    def _guess(self, tokens):
        for length in self.lengths:
            answer = self.answers.get(tuple(tokens[:length].tolist()))
            if answer is not None:
                done = len(tokens) - length
                draft = answer[done : done + self.rng.randrange(self.most + 1)]
                lot = self.rng.random
                return [t if lot() > 0.1 else self.rng.randrange(1, self.vocab) for t in draft]
        return []


class Unguarded(ForebayDrafter):  # pyright: ignore[reportGeneralTypeIssues] - a vLLM that is not there is its base
    """Ours, under graphs that it refuses."""

    def __init__(self, vllm_config):
        told = copy.copy(vllm_config)
        told.compilation_config = None
        super().__init__(told)


def watch(llm, steps):
    """Have each step's rows and guesses told: steps[-1] is what the next step will have."""
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    drafter = getattr(runner, "drafter", None)
    if drafter is None or not hasattr(drafter, "propose"):
        return
    ask = drafter.propose

    def propose(*args, **kwargs):
        drafts = ask(*args, **kwargs)
        if isinstance(drafts, list):
            names = list(runner.input_batch.req_ids)
            steps.append(dict(zip(names, [len(each) for each in drafts], strict=False)))
        return drafts

    drafter.propose = propose


def answer_all(engine, prompts, run, how, steps):
    """Answer all prompts, `batch` in flight; what each came to, in the prompts' order."""
    order = list(range(len(prompts)))
    if run.get("shuffle"):
        random.Random(run["shuffle"]).shuffle(order)
    waiting, flying, found, number = order[::-1], 0, {}, 0
    came = {n: [] for n in order}
    while waiting or flying:
        while waiting and flying < run["batch"]:
            n = waiting.pop()
            engine.add_request(f"{run['name']}-{n}", {"prompt_token_ids": prompts[n]}, how)
            flying += 1
        guesses = dict(steps[-1]) if steps else {}
        for answer in engine.step():
            n, told = int(answer.request_id.rpartition("-")[2]), answer.outputs[0]
            fresh = len(told.token_ids) - len(came[n])
            of_row = next((c for k, c in guesses.items() if answer.request_id in k), 0)
            came[n] += [[number, len(guesses), sum(guesses.values()), of_row]] * fresh
            if answer.finished:
                flying -= 1
                found[n] = told
        number += 1
    return [row_of(found[n], came[n]) for n in range(len(prompts))]


def row_of(told, came):
    """One answer: tokens, the five largest logits at each place, the step of each."""
    tops = [
        sorted(((round(x.logprob, 5), t) for t, x in each.items()), reverse=True)[:5]
        for each in told.logprobs or []
    ]
    return {"tokens": list(told.token_ids), "tops": tops, "came": came}


def run(options):
    """Load one engine and make all runs."""
    from vllm import LLM, SamplingParams

    while options.when and not all(path.exists() for path in options.when):
        time.sleep(0.2)
    llm = LLM(
        model=options.model, skip_tokenizer_init=True, disable_log_stats=False,
        logprobs_mode="raw_logits", max_logprobs=8, **json.loads(options.llm),
    )  # fmt: skip
    steps, told = [], {}
    watch(llm, steps)
    while options.go and not options.go.exists():
        time.sleep(0.2)
    scenes = {each["name"]: each for each in json.loads(options.scenes.read_text())}
    for each in options.runs:
        scene, began = scenes[each["scene"]], time.perf_counter()
        how = SamplingParams(
            temperature=0.0, max_tokens=scene["max_tokens"], ignore_eos=True, detokenize=False,
            logprobs=5,
        )  # fmt: skip
        prompts = scene["prompts"][: each.get("prompts")]
        told[each["name"]] = answer_all(llm.llm_engine, prompts, each, how, steps)
        beside = options.out.with_suffix(".new")
        beside.write_text(json.dumps(told))
        beside.replace(options.out)
        took = round(time.perf_counter() - began, 2)
        print(options.out.stem, each["name"], len(prompts), "answers", took, "s", flush=True)


def script(options):
    """Write what Adversary reads: prompts and the plain run's answers."""
    rows = json.loads(options.plain.read_text())[options.run]
    scenes = {each["name"]: each for each in json.loads(options.scenes.read_text())}
    prompts = scenes[options.scene]["prompts"]
    pairs = [[p, row["tokens"]] for p, row in zip(prompts, rows, strict=False)]
    options.out.write_text(json.dumps(pairs))


def load(told):
    """`FILE:RUN` as the rows of one run."""
    path, _, name = told.rpartition(":")
    return json.loads(Path(path).read_text())[name]


def parting(own, other):
    """Find the first place at which two answers differ, or None."""
    pairs = zip(own["tokens"], other["tokens"], strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def compare(mine, plain):
    """Hold one run against another."""
    parted, apart = [], []
    for n, (own, other) in enumerate(zip(mine, plain, strict=False)):
        at = parting(own, other)
        for place in range(len(own["tokens"]) if at is None else at + 1):
            mine_at = {t: x for x, t in own["tops"][place]}
            plain_at = {t: x for x, t in other["tops"][place]}
            gaps = [abs(mine_at[t] - plain_at[t]) for t in mine_at.keys() & plain_at.keys()]
            apart.append((max(gaps, default=9.0), n, place))
        if at is not None:
            parted.append(told_of(n, at, own, other))
    return parted, sorted(apart, reverse=True)


def told_of(n, at, own, other):
    """Tell of a place where an answer parts: both sides' logits, and the step."""
    lead = {
        side: round(row["tops"][at][0][0] - row["tops"][at][1][0], 5)
        for side, row in (("lead", own), ("plain_lead", other))
    }
    number, rows, guesses, of_row = own["came"][at]
    step = {"step": number, "rows": rows, "guesses": guesses, "of_row": of_row}
    tops = {"top": own["tops"][at], "plain_top": other["tops"][at]}
    return {"prompt": n, "place": at, **lead, **step, **tops}


def table(options):
    """Compare all runs with the first and write what came of it."""
    plain, told = load(options.runs[0]), {"against": Path(options.runs[0]).name, "runs": []}
    for name in options.runs[1:]:
        mine = load(name)
        parted, apart = compare(mine, plain)
        gaps = [gap for gap, *_ in apart]
        worst = [
            {"logits_apart": round(gap, 5), "prompt": n, "place": at, "came": mine[n]["came"][at]}
            for gap, n, at in apart[:5]
        ]
        row = {
            "run": Path(name).name, "same": min(len(mine), len(plain)) - len(parted),
            "of": min(len(mine), len(plain)), "places": len(gaps),
            "logits_apart": {
                "same": sum(gap == 0 for gap in gaps), "median": statistics.median(gaps),
                "p99": gaps[len(gaps) // 100], "p999": gaps[len(gaps) // 1000], "most": gaps[0],
            },
            "furthest": worst, "parted": parted,
        }  # fmt: skip
        told["runs"].append(row)
        leads = [[each["plain_lead"], each["lead"]] for each in parted]
        print(row["run"], row["same"], row["of"], row["logits_apart"], leads, flush=True)
    options.out.write_text(json.dumps(told, indent=1) + "\n")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="one engine, several runs")
    one.add_argument("--model", required=True)
    one.add_argument("--scenes", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--llm", default="{}", help="JSON of more arguments for LLM")
    one.add_argument("--runs", type=json.loads, required=True)
    one.add_argument("--when", type=Path, nargs="*", help="load once these files exist")
    one.add_argument("--go", type=Path, help="begin once this file exists")
    one.set_defaults(act=run)
    one = commands.add_parser("script", help="what Adversary reads")
    one.add_argument("plain", type=Path)
    one.add_argument("run")
    one.add_argument("scenes", type=Path)
    one.add_argument("scene")
    one.add_argument("out", type=Path)
    one.set_defaults(act=script)
    one = commands.add_parser("table", help="hold runs against the first")
    one.add_argument("runs", nargs="+", help="FILE:RUN")
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(act=table)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
