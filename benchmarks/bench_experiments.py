"""How often an experiment decides wrongly, and how soon rightly: `bench_experiments.py [--runs N]`.

Plays whole experiments (`forebay.policies.experiments.rehearsal`), looked at all the time, on two
processes; prints a table and keeps the counts in benchmarks/results/experiments/, by day.
"""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from forebay.policies.experiments.plan import Plan
from forebay.policies.experiments.rehearsal import (
    Ending,
    failing,
    healthy,
    rehearse,
    slow_tail,
    slower,
)

RESULTS = Path(__file__).parent / "results" / "experiments"
FAULTS = {
    "equal": healthy,
    "equal, margins 0": healthy,
    "all fail": failing,
    "ttft x2": slower(2.0),
    "ttft x1.2": slower(1.2),
    "ttft p99 x2": slow_tail,
    "ttft x0.7": slower(0.7),
}


RAMP, HALF = (0.05, 0.5), (0.5,)


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what the candidate does, in which stages, and how many requests it gets at most."""

    fault: str
    stages: tuple[float, ...]
    most: int


CASES = (
    *(Case("equal", stages, 2000) for stages in (RAMP, HALF)),
    *(Case("equal, margins 0", stages, 2000) for stages in (RAMP, HALF)),
    *(Case("all fail", stages, 20) for stages in (RAMP, HALF)),
    *(Case("ttft x2", stages, 500) for stages in (RAMP, HALF)),
    *(Case("ttft x1.2", stages, 3000) for stages in (RAMP, HALF)),
    *(Case("ttft p99 x2", stages, 10_000) for stages in (RAMP, HALF)),
    Case("ttft x0.7", RAMP, 3000),
)


def play(case: Case, seed: int) -> Ending:
    """Play one run of a case."""
    classes = ("batch", "fast")
    plan = Plan("x", ("a", "b"), {}, stages=case.stages, dwell_s=0.0, classes=classes)
    if case.fault == "equal, margins 0":  # the tests alone, without what a margin forgives
        plan = replace(plan, guardrails=dict.fromkeys(plan.guardrails, 0.0))
    return rehearse(plan, seed, most=case.most, fault=FAULTS[case.fault])


def row(case: Case, seeds: range, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Play a case's runs."""
    endings = list(pool.map(partial(play, case), seeds, chunksize=8))
    kinds = [ending.decision.what if ending.decision else "" for ending in endings]
    return {
        "candidate": case.fault,
        "stages": list(case.stages),
        "most_requests": case.most,
        "runs": len(seeds),
        "rolled_back": kinds.count("roll back"),
        "promoted": kinds.count("promote"),
        "requests": sorted(e.requests for e, kind in zip(endings, kinds, strict=True) if kind),
    }


def together(rows: list[dict[str, Any]], new: dict[str, Any]) -> dict[str, Any]:
    """Add a row to those there are: runs of one case, played at several times, are one row."""
    for old in rows:
        if (old["candidate"], old["stages"]) == (new["candidate"], new["stages"]):
            for name in ("runs", "rolled_back", "promoted"):
                old[name] += new[name]
            old["requests"] = sorted(old["requests"] + new["requests"])
            return old
    rows.append(new)
    return new


def shown(row: dict[str, Any]) -> str:
    """Write a row for people."""
    took, runs = row["requests"], row["runs"]
    stages = "-".join(f"{stage:.0%}" for stage in row["stages"])
    middle = (
        f"{statistics.median(took):g}, p95 {took[int(0.95 * (len(took) - 1))]}" if took else "-"
    )
    return (
        f"| {row['candidate']} | {stages} | {runs} | {row['most_requests']} | "
        f"{row['rolled_back'] / runs:.1%} | {row['promoted'] / runs:.1%} | {middle} |"
    )


def main() -> None:
    """Play the cases and write what came out; call it again with other seeds to add runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="of each case")
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--only", choices=tuple(FAULTS), help="this candidate only")
    parser.add_argument("--stages", type=int, help="cases of so many stages only")
    arguments = parser.parse_args()
    file = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    seeds = range(arguments.first, arguments.first + arguments.runs)
    with ProcessPoolExecutor(2) as pool:
        for case in CASES:
            fits = arguments.stages in {None, len(case.stages)}
            if fits and arguments.only in {None, case.fault}:
                print(shown(together(rows, row(case, seeds, pool))), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
