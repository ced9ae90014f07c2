"""The drawings of a report's page, as SVG."""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING, Any

from .wording import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = ("#3b6ea5", "#c05746", "#4f8a5b", "#8a6bb1", "#b08a2e")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 640, 260, 60, 32, 30
"""Of a drawing, and its margins: half of a label stands in the right one."""


def plots(report: dict[str, Any]) -> list[str]:
    """Draw the distributions of times and lengths, arm by arm."""
    titles = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "length": "Output tokens"}
    return [plot for name, title in titles.items() if (plot := _plot(report["arms"], name, title))]


def _plot(arms: list[dict[str, Any]], name: str, title: str) -> str:
    """Draw each arm's percentiles over a logarithmic scale of values."""
    curves = [(arm["name"], arm["spreads"][name]["curve"]) for arm in arms]
    curves = [(arm, curve) for arm, curve in curves if curve]
    values = [value for _, curve in curves for value in curve if value > 0]
    if not values:
        return ""
    low, high = log10(min(values)), log10(max(values))
    low, high = (low, high) if high - low > 0.05 else (low - 0.1, high + 0.1)
    lines = [_line(curve, low, high, i) for i, (_, curve) in enumerate(curves)]
    legend = [
        f'<text x="{_LEFT + 10}" y="{20 + 16 * i}" fill="{_colour(i)}" '
        f'style="fill:{_colour(i)}">{escape(arm)}</text>'
        for i, (arm, _) in enumerate(curves)
    ]
    svg = (
        f'<svg role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'aria-label="{escape(title)} by percentile">{_axes(low, high, name)}'
        f"{''.join(lines)}{''.join(legend)}</svg>"
    )
    caption = f"{title}: percentiles 1 to 99 of each arm, over a logarithmic scale"
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _line(curve: Sequence[float], low: float, high: float, index: int) -> str:
    least = 10**low
    points = " ".join(
        f"{_x(log10(max(value, least)), low, high):.1f},{_y(percent):.1f}"
        for percent, value in enumerate(curve, 1)
    )
    return f'<polyline points="{points}" fill="none" stroke="{_colour(index)}" stroke-width="2"/>'


def _x(value: float, low: float, high: float) -> float:
    return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)


def _y(percent: float) -> float:
    return _HEIGHT - _BOTTOM - percent / 100 * (_HEIGHT - _BOTTOM - 10)


def _axes(low: float, high: float, name: str) -> str:
    marks: list[str] = []
    for percent in (0, 50, 90, 99):
        y = _y(percent)
        marks.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="#e3e3e3"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">p{percent}</text>'
        )
    for step in range(5):
        at = low + (high - low) * step / 4
        text = f"{10**at:.3g}" if name == "length" else seconds(10**at)
        marks.append(
            f'<text x="{_x(at, low, high):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )
    return "".join(marks)


def forest(effects: list[dict[str, Any]]) -> str:
    """Draw the intervals of ratios: left of the line is less than the control."""
    shown = [e for e in effects if e["kind"] != "share" and e["high"] and e["low"] > 0]
    if not shown:
        return ""
    reach = max(0.1, *(abs(log10(e[side])) for e in shown for side in ("low", "high")))
    reach = min(reach, 1.0)
    height, left = 22 * len(shown) + 30, 190

    def x(ratio: float) -> float:
        at = max(-reach, min(reach, log10(ratio)))
        return left + (at + reach) / (2 * reach) * (_WIDTH - left - 20)

    rows: list[str] = []
    for i, e in enumerate(shown):
        y = 18 + 22 * i
        colour = {"worse": "#a3271b", "better": "#23713a"}.get(e["says_now"], "#777")
        rows.append(
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">'
            f"{escape(e['measure'] + ' ' + e['arm'])}</text>"
            f'<line x1="{x(e["low"]):.1f}" x2="{x(e["high"]):.1f}" y1="{y}" y2="{y}" '
            f'stroke="{colour}" stroke-width="3"/>'
            f'<circle cx="{x(e["estimate"] or 1):.1f}" cy="{y}" r="4" fill="{colour}"/>'
        )
    middle = f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="0" y2="{height - 20}" stroke="#999"/>'
    ends = "".join(
        f'<text x="{x(10**at):.1f}" y="{height - 4}" text-anchor="middle">x{10**at:.2f}</text>'
        for at in (-reach, 0.0, reach)
    )
    svg = (
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'aria-label="intervals of the effects">{middle}{"".join(rows)}{ends}</svg>'
    )
    return f"<figure>{svg}<figcaption>Ratios to the control, with intervals</figcaption></figure>"
