# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""Rejection sampling over a large vocabulary: ours against the floor and plain torch.

    python benchmarks/bench_rejection.py --out benchmarks/results/kernels

The floor is one reading of all logits. The peer is a softmax and a draw for each row, eager: what
sampling costs there before a guess is looked at. Half of the guesses are the likeliest tokens.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from kernels_common import Report, precompile, time_eager, time_rotating

from forebay.kernels.sampling.rejection import RejectionConfig, rejection_sample

VOCAB = 128_256
GUESSES = 4


def arguments(batch: int, *, drawn: bool, temperature: float) -> dict[str, Any]:
    """Make one batch's logits and guesses."""
    rows = batch * (GUESSES + 1)
    logits = (torch.randn(rows, VOCAB, device="cuda") * 2).bfloat16()
    draft = torch.randint(VOCAB, (batch * GUESSES,), device="cuda", dtype=torch.int32)
    best = logits.view(batch, GUESSES + 1, VOCAB)[:, :GUESSES].argmax(-1).flatten().int()
    draft[::2] = best[::2]
    return {
        "logits": logits,
        "draft": draft,
        "cu_draft": (torch.arange(batch + 1, device="cuda") * GUESSES).int(),
        "most": GUESSES,
        "temperature": torch.full((batch,), temperature, device="cuda"),
        "seeds": torch.arange(batch, device="cuda"),
        "places": torch.zeros(batch, dtype=torch.int64, device="cuda"),
        "draft_probs": torch.randn(batch * GUESSES, VOCAB, device="cuda").softmax(-1)
        if drawn
        else None,
    }


def plain(logits: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row."""
    return torch.multinomial((logits.float() / 0.8).softmax(-1), 1)


ROWS = (
    (1, False, 0.8), (1, True, 0.8), (32, False, 0.8), (32, True, 0.8), (32, False, 0.0),
    (128, False, 0.8), (128, True, 0.8), (128, False, 0.0),
)  # fmt: skip
SWEEP = [
    RejectionConfig(chunk, warps, walk)
    for chunk, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 4), (8192, 8), (8192, 16))
    for walk in (4, 8, 16, 32)
]


def on_meta(config: RejectionConfig) -> None:
    """Compile what a setting needs, without a GPU."""

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rejection_sample(
        logits=empty(5, VOCAB, dtype=torch.bfloat16), draft=empty(4, dtype=torch.int32),
        cu_draft=empty(2, dtype=torch.int32), most=4, seeds=empty(1), places=empty(1),
        temperature=empty(1, dtype=torch.float32), config=config,
    )  # fmt: skip


def sets_of(batch: int, *, drawn: bool, temperature: float) -> list[dict[str, Any]]:
    """Make batches enough to leave the L2 cache cold."""
    size = batch * (GUESSES + 1) * VOCAB * 2
    count = max(2, min(16, int(240e6 / size) + 1))
    return [arguments(batch, drawn=drawn, temperature=temperature) for _ in range(count)]


def timed(sets: list[dict[str, Any]], config: RejectionConfig | None = None) -> float:
    """Median microseconds of a call."""
    return time_rotating(
        [lambda told=told: rejection_sample(**told, config=config) for told in sets]
    )


def sweep(report: Report) -> None:
    """Time every setting for three batches."""
    for batch, drawn, temperature in (ROWS[0], ROWS[2], ROWS[3], ROWS[4], ROWS[5]):
        sets = sets_of(batch, drawn=drawn, temperature=temperature)
        for config in SWEEP:
            us = timed(sets, config)
            report.add(batch=batch, drawn=drawn, temperature=temperature, **asdict(config), us=us)


def main() -> None:
    """Run the table, or the sweep of settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sweep", action="store_true", help="every launch setting instead")
    options = parser.parse_args()
    if options.sweep:
        precompile([lambda config=config: on_meta(config) for config in SWEEP])
    report = Report("configs_rejection" if options.sweep else "rejection", options.out)
    try:
        if options.sweep:
            sweep(report)
            return
        for batch, drawn, temperature in ROWS:
            sets = sets_of(batch, drawn=drawn, temperature=temperature)
            us = timed(sets)
            floor = batch * (GUESSES + 1) * VOCAB * 2 / report.facts["copy_bytes_s"] * 1e6
            report.add(
                batch=batch, guesses=GUESSES, drawn=drawn, temperature=temperature, us=us,
                floor_us=floor, of_floor=floor / us,
                torch_draw=time_eager(lambda: plain(sets[0]["logits"])),  # noqa: B023 - called in this very turn
            )  # fmt: skip
    finally:
        report.save()


if __name__ == "__main__":
    main()
