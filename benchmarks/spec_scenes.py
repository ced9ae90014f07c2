# pyright: basic
# ruff: noqa: ANN001, ANN201, ANN202
# (scripts; what is passed around is said where it is made)
"""Scenes for bench_spec_vllm.py out of held-out text, and what came of them as tables.

    python benchmarks/spec_scenes.py make DIR
    python benchmarks/spec_scenes.py answers DIR/plain-v1.json DIR/scenes.json DIR/answers.jsonl
    python benchmarks/spec_scenes.py turns DIR/plain-v1.json DIR/eagle3.json ... --out turns.csv
    python benchmarks/spec_scenes.py table DIR/plain-v1.json DIR/eagle3.json ... --gpu NAME --out
        vllm.csv --greedy vllm_greedy.json

`make` reads DIR/held_out.tokens (spec_target.py) and writes DIR/scenes.json. `answers` makes what
`forebay spec store build` reads of the plain engine's answers, so that a store knows them. `table`
takes the plain engine first: outputs are compared with its, in its scenes `gaps` and `edit gaps`,
which alone ask for log probabilities, since those cost time; with its other scenes it is compared
itself. `turns` writes what `bench_spec_vllm.py --turns` measured, a row for each turn, and prints
means, lowest and highest, and times the quickest plain way's mean.
"""

import argparse
import csv
import json
import random
import statistics
from array import array
from datetime import UTC, datetime
from pathlib import Path

SEPARATOR = 0xFFFFFFFF
END = 0
NAMES = ("drafts", "draft_tokens", "accepted_tokens")


def passages(path, length):
    """Passages of so many tokens, each of another place of the held-out texts, in random order."""
    raw, texts, start = array("I", path.read_bytes()), [], 0
    for at, token in enumerate(raw):
        if token == SEPARATOR:
            texts.append(raw[start:at])
            start = at + 1
    found = [
        list(text[at : at + length])
        for text in texts
        for at in range(0, len(text) - length + 1, length)
    ]
    random.Random(5).shuffle(found)
    return found


def edited(passage, vocab, rng):
    """Put a passage and the same begun again, 3 % of its tokens changed, one behind the other."""
    again = [rng.randrange(1, vocab) if rng.random() < 0.03 else t for t in passage[:48]]
    return [*passage, END, *again]


def make(options):
    """Write the scenes; rates at one batch are taken from prompts of 256 tokens, answers of 192."""
    found = passages(options.folder / "held_out.tokens", 256)
    vocab, rng = 1 + max(map(max, found)), random.Random(6)
    left = iter(found * (1 + 1000 // len(found)))

    def scene(name, count, *, batch, length=256, most=192):
        prompts = [next(left)[:length] for _ in range(count)]
        told = {"name": name, "prompts": prompts, "max_tokens": most, "batch": batch}
        return {**told, "temperature": 0.0}

    first = scene("code b1", 16, batch=1)
    equal = scene("equal", 200, batch=25, length=64, most=64)
    edits = [edited(next(left)[:224], vocab, rng) for _ in range(40)]
    edit = {"max_tokens": 160, "temperature": 0.0}
    warm = {"batch": 1, "max_tokens": 192, "prompts": first["prompts"][:8]}
    scenes = [
        first,
        scene("code b4", 32, batch=4),
        scene("code b16", 64, batch=16),
        scene("code b64", 192, batch=64),
        scene("code b128", 384, batch=128),
        equal,
        {**equal, "name": "gaps", "logprobs": 2, "plain": True},
        {**edit, "name": "edit b1", "prompts": edits[:12], "batch": 1},
        {
            **edit,
            "name": "edit gaps",
            "prompts": edits[:12],
            "batch": 1,
            "logprobs": 2,
            "plain": True,
        },
        {**edit, "name": "edit b8", "prompts": edits, "batch": 8},
        {**first, "name": "repeat b1"},
        {**first, "name": "repeat b8", "batch": 8, "prompts": first["prompts"] * 2},
        *({**warm, "name": f"code b1 t{t}", "temperature": t} for t in (0.5, 1.0, 1.5)),
        {**first, "name": "code b1 second"},
        {**first, "name": "code b1 third"},
    ]
    if options.tiny:
        for each in scenes:
            each |= {"prompts": [p[:40] for p in each["prompts"][:3]], "max_tokens": 8}
    (options.folder / "scenes.json").write_text(json.dumps(scenes))


def answers(options):
    """Write prompts and answers of `code b1` as tokens."""
    scenes = {each["name"]: each for each in json.loads(options.scenes.read_text())}
    told = json.loads(options.plain.read_text())["scenes"]["code b1"]["outputs"]
    with options.out.open("w") as out:
        for prompt, answer in zip(scenes["code b1"]["prompts"], told, strict=True):
            line = {"tokens": [*prompt, *answer], "answer_from": len(prompt)}
            out.write(json.dumps(line) + "\n")


def row_of(way, name, scene):
    """Make one scene of one way a row."""
    grew = {n.removeprefix("vllm:spec_decode_num_"): v for n, v in scene["grew"].items()}
    drafts = grew.get("drafts") or 0
    places = sorted(n for n in grew if n.startswith("accepted_tokens_per_pos."))
    shares = [f"{grew[n] / drafts:.3f}" for n in places] if drafts else []
    counts = [grew.get(n, "") if drafts else "" for n in NAMES]
    rates = [round(scene["seconds"], 3), scene["tokens"], round(scene["tokens_per_s"], 1)]
    return [way, name, *rates, *counts, " ".join(shares)]


def parted(mine, plain):
    """Count outputs that are the plain ones, and say by how much it preferred its own elsewhere."""
    gaps, told = [], plain.get("gaps")
    for number, (own, other) in enumerate(zip(mine["outputs"], plain["outputs"], strict=True)):
        at = next((k for k, (a, b) in enumerate(zip(own, other, strict=True)) if a != b), None)
        if at is not None:
            gaps.append(told[number][at] if told else None)
    known = sorted(gap for gap in gaps if gap is not None)
    return {
        "same": len(mine["outputs"]) - len(gaps),
        "of": len(mine["outputs"]),
        "gaps_where_they_part": known,
    }


def table(options):
    """Write all ways' scenes as rows, and how far their greedy outputs are the plain engine's."""
    told = {path.stem: json.loads(path.read_text())["scenes"] for path in options.ways}
    plain, greedy = next(iter(told.values())), {}
    with options.out.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        head = ["way", "scene", "seconds", "output_tokens", "tokens_per_s", "drafts", "drafted"]
        out.writerow(["engine", "gpu", "date", *head, "accepted", "accepted_by_position"])
        for way, scenes in told.items():
            for name, scene in scenes.items():
                out.writerow([options.engine, options.gpu, options.date, *row_of(way, name, scene)])
            # The plain engine is held against itself too: how often does it part without drafts?
            pairs = (("equal", "gaps"), ("code b1", "code b1"), ("edit b1", "edit gaps"))
            greedy[way] = {
                name: parted(scenes[name], plain[other])
                for name, other in pairs
                if name in scenes and other in plain
            }
    if options.greedy:
        options.greedy.write_text(json.dumps(greedy, indent=1) + "\n")


def turns(options):
    """Write ways that were measured in turns, and print what they come to."""
    told = {path.stem: json.loads(path.read_text())["turns"] for path in options.ways}
    rates = {}
    with options.out.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        head = ["seconds", "output_tokens", "tokens_per_s", "drafts", "drafted", "accepted"]
        out.writerow(["engine", "gpu", "date", "way", "scene", "turn", *head, "by_position"])
        for way, found in told.items():
            for number, scenes in enumerate(found):
                for name, scene in scenes.items():
                    own, place, *row = row_of(way, name, scene)
                    said = [options.engine, options.gpu, options.date]
                    out.writerow([*said, own, place, number, *row])
                    rates.setdefault((name, way), []).append(scene["tokens_per_s"])
    for (name, way), found in sorted(rates.items()):
        ways = (each for (scene, own), each in rates.items() if scene == name and "plain" in own)
        plain = max(map(statistics.mean, ways), default=float("nan"))
        mean = statistics.mean(found)
        print(f"{name}: {way} {mean:.0f} ({min(found):.0f}-{max(found):.0f}), {mean / plain:.2f}")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make", help="scenes out of held-out text")
    one.add_argument("folder", type=Path)
    one.add_argument("--tiny", action="store_true")
    one.set_defaults(run=make)
    one = commands.add_parser("answers", help="the plain engine's answers, for a store")
    one.add_argument("plain", type=Path)
    one.add_argument("scenes", type=Path)
    one.add_argument("out", type=Path)
    one.set_defaults(run=answers)
    one = commands.add_parser("table", help="all ways as rows, and whose outputs part where")
    one.add_argument("ways", type=Path, nargs="+", help="JSON of bench_spec_vllm.py, plain first")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--greedy", type=Path)
    one.add_argument("--engine", default="vllm 0.26.0")
    one.add_argument("--gpu", default="NVIDIA H200")
    one.add_argument("--date", default=datetime.now(UTC).date().isoformat())
    one.set_defaults(run=table)
    one = commands.add_parser("turns", help="ways that were measured in turns")
    one.add_argument("ways", type=Path, nargs="+", help="JSON of bench_spec_vllm.py --turns")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--engine", default="vllm 0.26.0")
    one.add_argument("--gpu", default="NVIDIA H200")
    one.add_argument("--date", default=datetime.now(UTC).date().isoformat())
    one.set_defaults(run=turns)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
