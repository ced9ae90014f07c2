"""Draws docs/length-prediction.svg out of results/length: rank correlation by set and predictor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "length"
PICTURE = HERE.parent / "docs" / "length-prediction.svg"
SETS = ("alpaca_eval", "alpaca_vicuna7b", "arena_hard", "gaokao_zh", "zh_reference", "pool")
KINDS = (("mean", "#9aa5b1"), ("linear", "#e0a030"), ("encoder-seed0", "#2a6f97"))
PANELS = (("method", "trained on all sets"), ("default", "default weights: open sets only"))
WIDTH, HEIGHT, LEFT, TOP = 860, 300, 50, 34
SPAN = HEIGHT - TOP - 46


def main() -> None:
    """Write the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * 2}">',
        "<style>text {font: 12px sans-serif}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT * 2}" fill="white"/>',
    ]
    for number, (prefix, title) in enumerate(PANELS):
        parts += panel(prefix, title, number * HEIGHT)
    PICTURE.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def panel(prefix: str, title: str, top: int) -> list[str]:
    """Return one panel: a group of bars with intervals for each set."""
    base = top + TOP + SPAN
    parts = [f'<text x="{LEFT}" y="{top + 18}" font-weight="bold">{title}: tau, mixed</text>']
    for tick in (0.0, 0.2, 0.4, 0.6):
        y = base - tick / 0.75 * SPAN
        parts.append(line(LEFT, WIDTH - 10, y, y, "#ddd"))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    step = (WIDTH - LEFT - 20) / len(SETS)
    for place, name in enumerate(SETS):
        x = LEFT + 10 + place * step
        parts.append(f'<text x="{x}" y="{base + 18}">{name}</text>')
        for bar, (kind, colour) in enumerate(KINDS):
            parts += drawn(scores(prefix, kind, name), x + bar * 34, base, colour)
    for bar, (kind, colour) in enumerate(KINDS):
        x = WIDTH - 300 + bar * 95
        parts.append(f'<rect x="{x}" y="{top + 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{top + 18}">{kind.split("-")[0]}</text>')
    return parts


def scores(prefix: str, kind: str, name: str) -> dict[str, Any]:
    """Return what was measured."""
    told = json.loads((RESULTS / f"{prefix}-{kind}.json").read_text(encoding="utf-8"))
    return told["pool"] if name == "pool" else told["sets"][name]


def drawn(measured: dict[str, Any], x: float, base: float, colour: str) -> list[str]:
    """Return a bar and its interval."""
    tau = measured["tau_mixed"] or 0.0
    height = max(0.0, tau) / 0.75 * SPAN
    top = base - height
    bar = f'<rect x="{x:.1f}" y="{top:.1f}" width="28" height="{height:.1f}" fill="{colour}"/>'
    interval = measured.get("intervals", {}).get("tau_mixed")
    if not interval:
        return [bar]
    low, high = (base - max(-0.02, each) / 0.75 * SPAN for each in interval)
    return [bar, line(x + 14, x + 14, low, high, "#222")]


def line(left: float, right: float, top: float, bottom: float, colour: str) -> str:
    """Return a line."""
    ends = f'x1="{left:.1f}" x2="{right:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


if __name__ == "__main__":
    main()
