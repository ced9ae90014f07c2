# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""What the kernel benchmarks share: ceilings, timing, precompilation, tables.

Every table names the card, the versions and the date, and measures its own ceilings. A time is the
median of CUDA graph replays; a graph holds enough rotating input sets to leave the L2 cache cold.
"""

import csv
import datetime as dt
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

__all__ = [
    "Report",
    "ceilings",
    "pool_tables",
    "precompile",
    "time_rotating",
]

L2_BYTES = 60e6


def time_rotating(
    calls: Sequence[Callable[[], Any]], *, budget_s: float = 0.02, warm_s: float = 0.05
) -> float:
    """Median microseconds of one call, replaying a graph of all of them in turn."""
    for call in calls[:1]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    # An idle GPU takes tens of milliseconds to reach its clocks: 10 % and more of a first figure.
    once = math.inf
    began = time.perf_counter()
    while time.perf_counter() - began < warm_s:
        since = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        once = min(once, time.perf_counter() - since)
    repeats = max(5, min(50, int(budget_s / max(once, 1e-6))))
    marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(repeats)]
    for start, stop in marks:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in marks) * 1e3 / len(calls)


def time_eager(call: Callable[[], Any], *, repeats: int = 20) -> float:
    """Median microseconds of one eager call, for peers that cannot be captured."""
    for _ in range(3):
        call()
    marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(repeats)]
    for start, stop in marks:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in marks) * 1e3


def ceilings() -> dict[str, float]:
    """Measure copy bandwidth (bytes read and written, per second) and bf16 matmul FLOP/s."""
    n = 1 << 30
    source = torch.randint(-128, 127, (2 * n,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    copy = 4 * n / (time_eager(lambda: target.copy_(source)) * 1e-6)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul = 2 * 8192**3 / (time_eager(lambda: a @ b) * 1e-6)
    return {"copy_bytes_s": copy, "bf16_flop_s": matmul}


def pool_tables(
    *, pages: int, page: int, seq_lens: Sequence[int], sets: int, seed: int = 0
) -> list[torch.Tensor]:
    """Make block tables over one pool of pages, shuffled and disjoint as far as it goes."""
    rng = torch.Generator(device="cuda").manual_seed(seed)
    counts = [-(-n // page) for n in seq_lens]
    tables: list[torch.Tensor] = []
    order = torch.randperm(pages, generator=rng, device="cuda").int()
    at = 0
    for _ in range(sets):
        table = torch.zeros(len(seq_lens), max(counts) + 2, dtype=torch.int32, device="cuda")
        for b, count in enumerate(counts):
            if at + count > pages:
                at = 0
            table[b, :count] = order[at : at + count]
            at += count
        tables.append(table)
    return tables


def _compile(thunk: Callable[[], Any]) -> str:
    from forebay.kernels.aot import compile_only  # noqa: PLC0415 - replaces the driver

    try:
        with compile_only(read=False):
            thunk()
    except Exception as problem:  # noqa: BLE001 - one bad configuration must not end the sweep
        return f"{type(problem).__name__}: {str(problem)[:200]}"
    return ""


_THUNKS: list[Callable[[], Any]] = []


def _compile_at(index: int) -> str:
    return _compile(_THUNKS[index])


def precompile(thunks: Sequence[Callable[[], Any]], *, workers: int = 14) -> list[str]:
    """Compile launches on meta tensors in forked processes, before this one touches the GPU.

    The results land in Triton's disk cache, where the real launches find them.
    """
    began = time.perf_counter()
    _THUNKS[:] = thunks
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        problems = pool.map(_compile_at, range(len(thunks)), chunksize=1)
    bad = [p for p in problems if p]
    print(f"compiled {len(thunks)} in {time.perf_counter() - began:.1f} s, {len(bad)} failed")
    for text in sorted(set(bad)):
        print("  ", text)
    return problems


class Report:
    """Rows of one benchmark: printed as they come, saved as CSV with the machine's facts."""

    def __init__(self, name: str, out: Path | None) -> None:
        self.name = name
        self.out = out
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "command": " ".join(sys.argv),
        } | ceilings()
        print(json.dumps(self.facts), flush=True)

    def add(self, **row: Any) -> None:
        """Add and print one row."""
        self.rows.append(row)
        text = " ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()
        )
        print(text, flush=True)

    def save(self) -> None:
        """Write `<name>.csv` and `<name>.json` (the facts) where asked to."""
        if self.out is None or not self.rows:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        names = list(dict.fromkeys(k for row in self.rows for k in row))
        with (self.out / f"{self.name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            for row in self.rows:
                writer.writerow(
                    {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()}
                )
        (self.out / f"{self.name}.json").write_text(json.dumps(self.facts, indent=1) + "\n")
