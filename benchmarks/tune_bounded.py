"""How well the numbers of `bounded` carry over to traces that they were not chosen on.

For each trace (and what follows the first 12,000 requests, where that is long enough) every choice
of `share`, `large` and `patience` is run in the simulator at two loads, with `fcfs` beside it. What
each misses of its targets is one number, its loss. Then, for each trace, the choice is told that is
best on all the others, with its loss on this one: what somebody may expect on a trace of theirs.

    FOREBAY_DATA=DIR python benchmarks/tune_bounded.py --out rows.jsonl [--requests 12000]
    python benchmarks/tune_bounded.py --out rows.jsonl --tell
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.gateway.commands.replay_runs import read_trace
from forebay.policies.ordering_bounded import Bounded
from forebay.policies.registry import ORDERINGS
from forebay.scheduler.build import Scheduling
from forebay.scheduler.engine_profiles import find_profile
from forebay.scheduler.twin import (
    Settings,
    enough_in_flight,
    make_guess,
    measure_capacity,
    scale_to,
    simulate,
    summarise,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forebay.scheduler.traces import TraceRequest
    from forebay.scheduler.twin import Report

NAMES = (
    "servegen_deepseek-r1_24h.csv.gz",
    "servegen_deepseek-r1_1h_peak.csv.gz",
    "servegen_m-large_1h.csv.gz",
    "servegen_m-large_7d.csv.gz",
    "azure2023_conv.csv.gz",
    "azure2023_code.csv.gz",
    "mooncake_conversation.jsonl.gz",
    "mooncake_synthetic.jsonl.gz",
)
"""Those that docs/scheduling.md judges by."""
OTHERS = ("servegen_m-mid_7d.csv.gz", "servegen_m-small_7d.csv.gz", "vtc_arena_27clients.csv.gz")
"""Those that nobody has looked at while choosing."""
SHARES = (0.3, 0.5, 0.68, 0.88)
LARGE = (0.0, 0.005, 0.015, 0.05)
PATIENCE = (2.0, 4.0)
NOW = (0.68, 0.015, 4.0)
LEAST = 2000
Choice = tuple[float, float, float]


def choices() -> list[Choice]:
    """Return all that is tried; patience means nothing where nobody is large."""
    return [c for c in product(SHARES, LARGE, PATIENCE) if c[1] or c[2] == PATIENCE[0]]


def parts(folder: Path, most: int) -> Iterator[tuple[str, list[TraceRequest]]]:
    """Yield the traces, and what follows their first `most` requests."""
    for name in (*NAMES, *OTHERS):
        trace = read_trace(folder / name, tenants="one")
        short = name.split(".")[0]
        yield short, trace[:most]
        rest = trace[most : 2 * most]
        if len(rest) >= LEAST:
            yield f"{short}, later", rest


def run(trace: list[TraceRequest], settings: Settings, order: str) -> Report:
    """Replay a trace with the published predictor's errors."""
    made = replace(settings, scheduling=Scheduling(order=order, predicts=True))
    return summarise(trace, simulate(trace, made, make_guess("ssjf", trace, 0)), made)


def against(report: Report, fcfs: Report) -> dict[str, float]:
    """Put a run beside first come, first served."""
    gap = 1.0 - fcfs.goodput_share
    return {
        "cut": 1.0 - report.mean_wait_s / fcfs.mean_wait_s if fcfs.mean_wait_s else 0.0,
        "p99": report.p99_wait_s / fcfs.p99_wait_s if fcfs.p99_wait_s else 1.0,
        "p99_e2e": report.p99_e2e_s / fcfs.p99_e2e_s,
        "closed": (report.goodput_share - fcfs.goodput_share) / gap if gap > 0.01 else 1.0,
    }


def measure(name: str, trace: list[TraceRequest], file: Any) -> None:
    """Run every choice on one trace and write a line each."""
    settings = Settings(profile=find_profile("h200-8b"), endpoints=2)
    settings = replace(settings, max_in_flight=enough_in_flight(trace, settings))
    capacity = measure_capacity(trace, settings)
    for load in (0.7, 0.95):
        scaled = scale_to(load, trace, capacity)
        fcfs = run(scaled, settings, "fcfs")
        for choice in choices():
            share, large, patience = choice
            ORDERINGS["bounded"] = partial(Bounded, share, large, patience)
            told = against(run(scaled, settings, "bounded"), fcfs)
            row = {"trace": name, "load": load, "choice": choice, **told, "fcfs": fcfs.mean_wait_s}
            file.write(json.dumps(row) + "\n")
            file.flush()
        print(f"{name} at {load}: done", file=sys.stderr, flush=True)


def loss(rows: Iterable[dict[str, Any]]) -> float:
    """Return by how much one choice misses its targets on one trace, each as a share of it."""
    missed = 0.0
    for row in rows:
        if row["load"] < 0.9:
            missed += max(0.0, row["p99"] / 1.02 - 1.0) + max(0.0, row["p99_e2e"] / 1.02 - 1.0)
        else:
            missed += max(0.0, 1.0 - row["cut"] / 0.45) + max(0.0, row["p99"] / 1.10 - 1.0)
            missed += max(0.0, 1.0 - row["closed"] * 3.0)
    return missed


def tell(lines: Iterable[str]) -> None:
    """Print the choice for each trace that the others make."""
    rows = defaultdict[tuple[str, Choice], list[dict[str, Any]]](list)
    for line in lines:
        row = json.loads(line)
        rows[row["trace"], tuple(row["choice"])].append(row)
    losses = {key: loss(found) for key, found in rows.items()}
    names = list(dict.fromkeys(name for name, _ in losses))
    tried = list(dict.fromkeys(choice for _, choice in losses))

    def best(among: list[str]) -> Choice:
        return min(tried, key=lambda choice: sum(losses[name, choice] for name in among))

    judged = [name for name in names if any(own.split(".")[0] == name for own in NAMES)]
    unseen = [name for name in names if name not in judged]
    for title, among in (("all", names), ("the judged ones", judged), ("the unseen", unseen)):
        choice = best(among) if among else NOW
        means = [sum(losses[n, choice] for n in g) / max(1, len(g)) for g in (judged, unseen)]
        print(f"best on {title}: {choice}, mean loss {means[0]:.3f} judged, {means[1]:.3f} unseen")
    print(f"{'trace':34} {'by the others':18} {'loss':>6} {'as it is':>9} {'own best':>9}   at .95")
    for name in names:
        # What follows in the same trace is not another one.
        others = [n for n in names if n.split(",")[0] != name.split(",")[0]]
        choice = best(others)
        own = min(losses[name, c] for c in tried)
        at = next(row for row in rows[name, choice] if row["load"] > 0.9)
        told = f"{-at['cut']:+.0%} x {at['p99']:.2f} {at['closed']:.2f}"
        print(
            f"{name:34} {choice!s:18} {losses[name, choice]:6.2f} {losses[name, NOW]:9.2f}"
            f" {own:9.2f}   {told}"
        )


def main() -> None:
    """Measure or tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--tell", action="store_true")
    args = parser.parse_args()
    if args.tell:
        tell(args.out.read_text(encoding="utf-8").splitlines())
        return
    folder = Path(os.environ["FOREBAY_DATA"]) / "traces"
    with args.out.open("w", encoding="utf-8") as file:
        for name, trace in parts(folder, args.requests):
            measure(name, trace, file)


if __name__ == "__main__":
    main()
