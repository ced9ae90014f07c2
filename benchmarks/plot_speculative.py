"""Draws docs/speculative.svg out of results/speculative: times plain, by batch and temperature."""

from __future__ import annotations

import csv
import math
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "speculative"
PICTURE = HERE.parent / "docs" / "speculative.svg"
WAYS = (
    ("eagle3-5", "EAGLE-3, 5 drafted", "#1b4965"),
    ("eagle3-4", "EAGLE-3, 4 drafted", "#2a9d8f"),
    ("eagle", "EAGLE-1", "#e0a030"),
    ("medusa", "Medusa", "#9aa5b1"),
)
BATCHES = {f"code b{n}": math.log2(n) / 7 for n in (1, 4, 16, 64, 128)}
WARMTHS = {"code b1": 0.0, "code b1 t0.5": 1 / 3, "code b1 t1.0": 2 / 3, "code b1 t1.5": 1.0}
PANELS = (
    ("times plain, new text, by batch", BATCHES, ("1", "4", "16", "64", "128")),
    ("at batch 1, by temperature", WARMTHS, ("0", "0.5", "1", "1.5")),
)
WIDTH, HEIGHT, LEFT, TOP, MOST = 860, 300, 46, 34, 3.0
PANEL, ACROSS, DOWN = 430, 340, HEIGHT - 34 - 40


def main() -> None:
    """Write the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 24}">',
        "<style>text {font: 12px sans-serif}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT + 24}" fill="white"/>',
    ]
    for number, (title, places, labels) in enumerate(PANELS):
        parts += panel(title, places, labels, LEFT + number * PANEL)
    for number, (_, name, colour) in enumerate(WAYS):
        x = LEFT + number * 200
        parts.append(f'<rect x="{x}" y="{HEIGHT + 4}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{HEIGHT + 14}">{name}</text>')
    PICTURE.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def gains(way: str) -> dict[str, float]:
    """Tokens/s of each scene over that of the quicker plain engine."""
    with (RESULTS / "vllm.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    rates = {(row["way"], row["scene"]): float(row["tokens_per_s"]) for row in rows}
    plain = {
        scene: max(rates.get((runner, scene), 0.0) for runner in ("plain-v1", "plain-v2"))
        for _, scene in rates
    }
    return {
        scene: rate / plain[scene]
        for (own, scene), rate in rates.items()
        if own == way and plain[scene]
    }


def height(value: float) -> float:
    """Where a value lies."""
    return TOP + DOWN * (1 - value / MOST)


def panel(title: str, places: dict[str, float], labels: tuple[str, ...], left: int) -> list[str]:
    """Axes and one line for each way."""
    parts = [f'<text x="{left}" y="20">{title}</text>']
    for value in (0, 1, 2, 3):
        y, colour = round(height(value), 1), "#444" if value == 1 else "#ddd"
        parts.append(f'<path d="M{left} {y}h{ACROSS}" stroke="{colour}"/>')
        parts.append(f'<text x="{left - 16}" y="{y + 4}">{value}</text>')
    for label, place in zip(labels, places.values(), strict=True):
        x = left + place * ACROSS
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 20}" text-anchor="middle">{label}</text>')
    for way, _, colour in WAYS:
        found = gains(way)
        spots = [(left + p * ACROSS, height(found[s])) for s, p in places.items() if s in found]
        if len(spots) > 1:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            drawn = f'fill="none" stroke="{colour}" stroke-width="2"'
            parts.append(f'<polyline points="{line}" {drawn}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
    return parts


if __name__ == "__main__":
    main()
