"""How often an experiment decides wrongly, and how soon rightly: `bench_experiments.py [--runs N]`.

Plays whole experiments (`forebay.policies.experiments.rehearsal`), looked at all the time, on two
processes, and writes a table and JSON to benchmarks/results/experiments/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
    "all fail": failing,
    "ttft x2": slower(2.0),
    "ttft x1.2": slower(1.2),
    "ttft p99 x2": slow_tail,
    "ttft x0.7": slower(0.7),
}


RAMP, LOW, HALF = (0.05, 0.5), (0.05,), (0.5,)


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what the candidate does, in which stages, and how many requests it gets at most."""

    fault: str
    stages: tuple[float, ...]
    most: int


CASES = (
    Case("equal", RAMP, 2000),
    Case("equal", HALF, 2000),
    *(Case("all fail", stages, 20) for stages in (RAMP, HALF)),
    *(Case("ttft x2", stages, 500) for stages in (RAMP, HALF)),
    *(Case("ttft x1.2", stages, 3000) for stages in (RAMP, HALF)),
    *(Case("ttft p99 x2", stages, 10_000) for stages in (RAMP, LOW, HALF)),
    Case("ttft x0.7", RAMP, 3000),
)


def play(case: Case, seed: int) -> Ending:
    """Play one run of a case."""
    classes = ("batch", "fast")
    plan = Plan("x", ("a", "b"), {}, stages=case.stages, dwell_s=0.0, classes=classes)
    return rehearse(plan, seed, most=case.most, fault=FAULTS[case.fault])


def row(case: Case, runs: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Play a case's runs."""
    began = time.perf_counter()
    endings = list(pool.map(partial(play, case), range(runs), chunksize=8))
    kinds = [ending.decision.what if ending.decision else "" for ending in endings]
    took = sorted(e.requests for e, kind in zip(endings, kinds, strict=True) if kind)
    return {
        "candidate": case.fault,
        "stages": case.stages,
        "most_requests": case.most,
        "runs": runs,
        "rolled_back": kinds.count("roll back") / runs,
        "promoted": kinds.count("promote") / runs,
        "requests_p50": statistics.median(took) if took else None,
        "requests_p95": took[int(0.95 * (len(took) - 1))] if took else None,
        "took_s": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Play all cases and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each case with a fault")
    parser.add_argument("--equal-runs", type=int, default=2000, help="of equal arms")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(2) as pool:
        for case in CASES:
            runs = arguments.equal_runs if case.fault == "equal" else arguments.runs
            rows.append(row(case, runs, pool))
            print(json.dumps(rows[-1]), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}.json"
    file.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
