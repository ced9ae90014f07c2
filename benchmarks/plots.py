# pyright: basic, reportMissingImports=false
# (matplotlib is not installed where types are checked)
"""Draws the pictures in docs/ out of benchmarks/results.

    pip install --group plots
    python benchmarks/plots.py [NAME ...]

A name is that of a page in docs/, without any all are drawn. The same results give the same bytes.
docs/scheduling.svg is drawn by `forebay replay --plot`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
OURS, FIRST_PEER, SECOND_PEER, PLAIN = "#1b6ca8", "#e0a030", "#2a9d8f", "#9aa5b1"

mpl.use("svg")
mpl.rcParams.update(
    {
        "svg.fonttype": "none",  # letters as letters: smaller, and found by a search
        "svg.hashsalt": "forebay",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "figure.constrained_layout.use": True,
    }
)


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], metavar="NAME")
    for name in parser.parse_args().names or PICTURES:
        figure = PICTURES[name]()
        figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def table(path: str) -> list[dict[str, str]]:
    """Read a CSV of results."""
    with (RESULTS / path).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def records(path: str) -> list[dict[str, Any]]:
    """Read results of a JSON object a line."""
    lines = (RESULTS / path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    colours: list[str],
) -> None:
    """Draw a bar of each series in each group; None has none."""
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        shown = [(x, value) for x, value in enumerate(values) if value is not None]
        at = [x + (place - (len(series) - 1) / 2) * width for x, _ in shown]
        axes.bar(at, [value for _, value in shown], width * 0.92, label=name, color=colours[place])
    axes.set_xticks(range(len(groups)), groups)


def dots(axes: Axes, series: Mapping[str, Sequence[float]], colours: list[str]) -> None:
    """Draw each round of each series as a dot, and the medians as lines."""
    for place, (values, colour) in enumerate(zip(series.values(), colours, strict=True)):
        step = 0.5 / max(1, len(values) - 1)
        at = [place - 0.25 + step * number for number in range(len(values))]
        axes.plot(at, values, "o", color=colour, markersize=5)
        axes.hlines(median(values), place - 0.35, place + 0.35, color=colour)
    axes.set_xticks(range(len(series)), list(series))
    axes.set_ylim(0, 1.05 * max(max(values) for values in series.values()))


def kernels() -> Figure:
    """Decode by batch, prefill by shape, and both inside vLLM."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), width_ratios=(5, 5, 4))
    peers = {
        "ours": ("decode_narrow", "us", OURS),
        "FlashAttention 3": ("decode_narrow", "flash_attn_3", FIRST_PEER),
        "FlashInfer": ("decode_flashinfer", "flashinfer_fa2", SECOND_PEER),
        "vLLM's Triton": ("decode", "vllm_triton", PLAIN),
    }
    for name, (run, column, colour) in peers.items():
        rows = [row for row in table(f"kernels/{run}.csv") if is_plain_decode(row)]
        share = [100 * float(row["floor_us"]) / float(row[column]) for row in rows]
        left.plot([row["batch"] for row in rows], share, "o-", label=name, color=colour)
    left.set(title="decode, 32 / 8 heads, 4k cached", xlabel="batch", ylim=(0, 115))
    left.set_ylabel("% of the rate of a copy")
    left.legend(loc="lower right")

    rates: dict[str, list[float]] = {}
    runs = {
        "ours": ("prefill", "tflops"),
        "FlashAttention 3": ("prefill", "flash_attn_3"),
        "FlashInfer": ("prefill_flashinfer", "flashinfer_fa3"),
    }
    shapes: list[str] = []
    for name, (run, column) in runs.items():
        rows = [row for row in table(f"kernels/{run}.csv") if row["kv"] == "bf16"]
        rows = [row for row in rows if row["page"] == "16"]
        shapes = [f"{size(row['chunk'])} + {size(row['prefix'])}" for row in rows]
        rates[name] = [float(row[column]) for row in rows]
    bars(middle, shapes, rates, [OURS, FIRST_PEER, SECOND_PEER])
    middle.set(title="prefill, pages of 16", xlabel="new + cached tokens", ylabel="TFLOP/s")
    middle.set_ylim(0, 800)
    middle.legend(loc="upper left", ncols=3, columnspacing=1, handlelength=1)

    rounds: dict[str, list[float]] = defaultdict(list)
    for row in table("kernels/vllm_serve.csv"):
        rounds[row["backend"]].append(float(row["mean_tpot_ms"]))
    names = {"CUSTOM": "ours", "FLASH_ATTN": "FLASH_ATTN", "TRITON_ATTN": "TRITON_ATTN"}
    dots(right, {names[way]: rounds[way] for way in names}, [OURS, FIRST_PEER, PLAIN])
    right.set(title="vLLM 0.26, 8 B, five rounds", ylabel="ms a token", ylim=(8, 9))
    return figure


def is_plain_decode(row: dict[str, str]) -> bool:
    """Tell whether a row is of one new token after 4k, 32 / 8 heads, bf16."""
    said = tuple(row[name] for name in ("model", "kv", "q", "length"))
    return said == ("L3-8B", "bf16", "1", "4096")


def size(tokens: str) -> str:
    """Return 4096 as 4k."""
    number = int(tokens)
    return f"{number // 1024}k" if number >= 1024 else tokens


def length_prediction() -> Figure:
    """Rank correlation by set and predictor, with intervals."""
    sets = ("alpaca_eval", "alpaca_vicuna7b", "arena_hard", "gaokao_zh", "zh_reference", "pool")
    kinds = {"mean": PLAIN, "linear": FIRST_PEER, "encoder-seed0": OURS}
    figure, both = plt.subplots(2, 1, figsize=(9, 6))
    titles = {"method": "trained on all sets", "default": "default weights: open sets only"}
    for axes, (prefix, title) in zip(both, titles.items(), strict=True):
        for place, (kind, colour) in enumerate(kinds.items()):
            path = RESULTS / "length" / f"{prefix}-{kind}.json"
            told = json.loads(path.read_text(encoding="utf-8"))
            found = [told["pool"] if name == "pool" else told["sets"][name] for name in sets]
            at = [x + (place - 1) * 0.27 for x in range(len(sets))]
            taus = [each["tau_mixed"] or 0.0 for each in found]
            axes.bar(at, taus, 0.25, color=colour, label=kind.split("-")[0])
            for x, each in zip(at, found, strict=True):
                if interval := each.get("intervals", {}).get("tau_mixed"):
                    axes.vlines(x, *interval, color="#222222", linewidth=1)
        axes.set_xticks(range(len(sets)), sets)
        axes.set(title=title, ylabel="tau, mixed", ylim=(-0.25, 0.85))
        axes.legend(loc="upper left", ncols=3)
    return figure


def performance() -> Figure:
    """Three rounds of the compiled gateway and its peer."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(5, 3))
    told = records("gateway/2026-11-30-compiled-after.jsonl")
    names = {
        ("vllm-rr", "none", "off"): "vllm-router",
        ("forebay", "none", "off"): "forebay",
        ("forebay", "memory", "off"): "limits in\nmemory",
        ("forebay", "redis", "off"): "limits in\nRedis",
        ("sglang-cache", "none", "auto"): "sglang-router\ncache_aware",
        ("forebay", "none", "auto"): "forebay\nprefix: auto",
    }
    rates, added = defaultdict(list), defaultdict(list)
    for row in told:
        name = names.get((row["name"], row["limits"], row["prefix"]))
        if name and "rps" in row:
            rates[name].append(row["rps"]["rps"])
        if name and "lat" in row:
            added[name].append(row["lat"]["added_p50_us"])
    ordered = {name: rates[name] for name in names.values()}
    dots(left, ordered, [FIRST_PEER, OURS, OURS, OURS, SECOND_PEER, OURS])
    left.set(title="one core, 64 callers, compiled", ylabel="requests/s")
    left.tick_params(axis="x", labelsize=7.5)
    dots(right, dict(added), [FIRST_PEER, OURS])
    right.set(title="one caller", ylabel="us added at the median")
    return figure


def prefix_routing() -> Figure:
    """Conversations on two real vLLM: what was cached and how soon the first token came."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    names = {
        "vllm-rr": ("vllm-router\nround robin", PLAIN),
        "vllm-cache": ("vllm-router\ncache_aware", SECOND_PEER),
        "sglang-cache": ("sglang-router\ncache_aware", FIRST_PEER),
        "forebay-learned": ("forebay", OURS),
    }
    told = [row for row in records("prefix/2026-11-30-real-half.jsonl") if row["cache"] == 0.5]
    colours = [colour for _, colour in names.values()]

    def by_gateway(column: str, times: float = 1) -> dict[str, list[float]]:
        return {
            name: [times * row[column] for row in told if row["gateway"] == gateway]
            for gateway, (name, _) in names.items()
        }

    dots(left, by_gateway("cached_share", 100), colours)
    left.set(title="prompt tokens that were cached", ylabel="%")
    dots(right, by_gateway("ttft_p50_ms"), colours)
    right.set(title="TTFT, median", ylabel="ms")
    return figure


def of_ours() -> dict[str, float]:
    """Our drafter's tokens/s over the quicker plain runner's, by scene, means of all turns."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in table("speculative/vllm_turns.csv"):
        rates[row["way"], row["scene"]].append(float(row["tokens_per_s"]))
    means = {place: sum(found) / len(found) for place, found in rates.items()}
    scenes = [scene for way, scene in means if way == "forebay" and scene.startswith("code")]
    plain = {s: max(means["plain-v1", s], means["plain-v2", s]) for s in scenes}
    return {scene: means["forebay", scene] / plain[scene] for scene in scenes}


def speculative() -> Figure:
    """Tokens/s over the plain engine's, by batch and by temperature."""
    ways = {
        "eagle3-5": ("EAGLE-3, 5 drafted", OURS),
        "eagle3-4": ("EAGLE-3, 4 drafted", SECOND_PEER),
        "eagle": ("EAGLE-1", FIRST_PEER),
        "medusa": ("Medusa", PLAIN),
    }
    rates = {
        (row["way"], row["scene"]): float(row["tokens_per_s"])
        for row in table("speculative/vllm.csv")
    }
    plain: dict[str, float] = defaultdict(float)
    for (way, scene), rate in rates.items():
        if way.startswith("plain"):
            plain[scene] = max(plain[scene], rate)
    batches = {f"code b{n}": str(n) for n in (1, 4, 16, 64, 128)}
    warmths = {"code b1": "0", "code b1 t0.5": "0.5", "code b1 t1.0": "1", "code b1 t1.5": "1.5"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for axes, scenes in ((left, batches), (right, warmths)):
        for way, (name, colour) in ways.items():
            known = [scene for scene in scenes if (way, scene) in rates and plain[scene]]
            gains = [rates[way, scene] / plain[scene] for scene in known]
            at = [list(scenes).index(scene) for scene in known]
            axes.plot(at, gains, "o-", label=name, color=colour)
        axes.axhline(1, color="#444444", linewidth=1)
        axes.set_xticks(range(len(scenes)), list(scenes.values()))
        axes.set_ylim(0, 3.6)
    gains = of_ours()
    at = [list(batches).index(scene) for scene in gains]
    left.plot(at, list(gains.values()), "o--", label="ours, another target", color="#444444")
    left.legend(handles=left.get_lines()[-1:], loc="upper right")
    left.set(title="new text", xlabel="batch", ylabel="times plain")
    right.set(title="new text at batch 1", xlabel="temperature")
    right.legend(loc="upper right")
    return figure


PICTURES = {
    "kernels": kernels,
    "length-prediction": length_prediction,
    "performance": performance,
    "prefix-routing": prefix_routing,
    "speculative": speculative,
}

if __name__ == "__main__":
    main()
