"""The picture of `forebay replay`: waits over load, one row a trace, as SVG written by hand."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_COLOURS = ("#4c566a", "#d1495b", "#00798c", "#edae49", "#66a182", "#8d5a97", "#2e4057", "#b07d4f")
_WIDE, _HIGH = 340, 220
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 34, 14, 34
_PANELS = (("mean_wait_s", "mean wait, s"), ("p99_wait_s", "p99 wait, s"))
_LEAST = 1e-3
"""Shorter waits are drawn as this: the scale is logarithmic."""


def picture(runs: Sequence[Mapping[str, Any]]) -> str:
    """Draw the mean over the seeds of each ordering's mean and p99 wait."""
    traces = list(dict.fromkeys(str(run["trace"]) for run in runs))
    orders = list(dict.fromkeys(str(run["order"]) for run in runs))
    colours = {order: _COLOURS[n % len(_COLOURS)] for n, order in enumerate(orders)}
    parts = [_legend(colours)]
    for row, trace in enumerate(traces):
        own = [run for run in runs if run["trace"] == trace]
        for column, (key, label) in enumerate(_PANELS):
            inner = _panel(own, key, f"{trace}: {label}", colours)
            parts.append(
                f'<g transform="translate({column * _WIDE},{30 + row * _HIGH})">{inner}</g>'
            )
    width, height = _WIDE * len(_PANELS), 30 + _HIGH * len(traces)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _legend(colours: Mapping[str, str]) -> str:
    parts: list[str] = []
    for number, (order, colour) in enumerate(colours.items()):
        x = _LEFT + number * 78
        parts.append(
            f'<line x1="{x}" y1="16" x2="{x + 18}" y2="16" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 22}" y="20">{escape(order)}</text>'
        )
    return "".join(parts)


def _panel(
    runs: Sequence[Mapping[str, Any]], key: str, title: str, colours: Mapping[str, str]
) -> str:
    lines = _means(runs, key)
    values = [max(_LEAST, value) for points in lines.values() for value in points.values()]
    low, high = floor(log10(min(values))), ceil(log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    loads = sorted({load for points in lines.values() for load in points})
    inside_wide, inside_high = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM

    def x_of(load: float) -> float:
        span = loads[-1] - loads[0]
        return _LEFT + inside_wide * ((load - loads[0]) / span if span else 0.5)

    def y_of(value: float) -> float:
        return _TOP + inside_high * (high - log10(max(_LEAST, value))) / (high - low)

    parts = [f'<text x="{_LEFT}" y="{_TOP - 10}" font-weight="bold">{escape(title)}</text>']
    parts += [_grid(y_of(10.0**power), f"{10.0**power:g}") for power in range(low, high + 1)]
    for load in loads:
        label = f'<text x="{x_of(load):.1f}" y="{_HIGH - 14}" text-anchor="middle">{load:g}</text>'
        parts.append(label)
    for order, points in lines.items():
        at = [(x_of(load), y_of(points[load])) for load in sorted(points)]
        parts.append(_line(at, colours[order]))
    return "".join(parts)


def _means(runs: Iterable[Mapping[str, Any]], key: str) -> dict[str, dict[float, float]]:
    """Average over the seeds: by ordering and load."""
    found: defaultdict[str, defaultdict[float, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        found[run["order"]][run["load"]].append(run[key])
    return {
        order: {load: sum(values) / len(values) for load, values in points.items()}
        for order, points in found.items()
    }


def _grid(y: float, label: str) -> str:
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDE - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>{dots}'
