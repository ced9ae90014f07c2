"""A report as one HTML page: no script, no style and no image from anywhere else.

Made of the report's JSON, so the command line can write it wherever the gateway runs. All text is
escaped: names come from a configuration, but pairs of answers do not.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from .report_plots import forest, plots
from .wording import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOO_MUCH = 10.0
"""A worsening that nobody needs a test to see."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
  color: #222; background: #fff }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: .87rem; display: block; overflow-x: auto }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #ddd;
  white-space: nowrap }
td.why, td.text { white-space: normal } .worse { color: #a3271b } .better { color: #23713a }
.note { color: #666 } svg text { font: 11px system-ui, sans-serif; fill: #555 }
figure { margin: 1rem 0 } figcaption { color: #555; font-size: .87rem }
"""


def page(report: dict[str, Any]) -> str:
    """Return the page of a report, as the admin API gives it."""
    parts = [
        *_head(report),
        *_arms(report),
        *plots(report),
        *_effects(report),
        *_traffic(report),
        *_shadow(report.get("shadow")),
        *_decisions(report["decisions"]),
    ]
    title = escape(f"{report['name']}: forebay experiment")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{head}{view}</head><body>' + (
        "\n".join(parts) + "</body></html>\n"
    )


def _head(report: dict[str, Any]) -> list[str]:
    stages = report["stages"]
    stage = ""
    if stages and report["phase"] in {"running", "paused"}:
        share = stages[min(report["stage"], len(stages) - 1)]
        stage = f", stage {report['stage'] + 1} of {len(stages)} ({share:.0%})"
    text = (
        f"Pool {report['pool']}. It is <b>{escape(report['phase'].replace('_', ' '))}</b>{stage}, "
        f"since {_date(report['since'])}. The primary measure is {report['primary']}; all tests "
        f"together err with a chance of at most {report['alpha']:.0%}, whenever one looks."
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [
        f"<h1>{escape(report['name'])}</h1><p class='note'>as of {made}</p>",
        f"<p>{text}</p>",
    ]


def _arms(report: dict[str, Any]) -> list[str]:
    names = ["arm", "role", "share", "requests", "failed", "refused", "left", "empty", "truncated"]
    names += ["TTFT p50", "TTFT p99", "TPOT p50", "E2E p50", "queue p50", "tokens", "cached"]
    names += ["goodput", "cost of 1k", "load"]
    rows = [_arm(arm) for arm in report["arms"]]
    return [
        "<h2>Arms</h2>",
        _table(names, rows),
        "<p class='note'>All of this run. Load is requests in flight over the limit, now.</p>",
        *_reasons(report["arms"]),
        *_by_class(report["arms"]),
    ]


def _arm(arm: dict[str, Any]) -> list[str]:
    spreads, requests, answered = arm["spreads"], arm["requests"], arm["answered"]
    prompts = arm["prompt_tokens"]
    load = ", ".join(f"{e['name']} {e['in_flight']}/{e['limit']}" for e in arm["endpoints"])
    cost = arm["cost_per_1k"]
    return [
        *(arm["name"], arm["role"], f"{arm['share']:.0%}", str(requests)),
        *(_part(arm[name], requests) for name in ("errors", "refused", "left")),
        *(_part(arm[name], answered) for name in ("empty", "truncated")),
        *(seconds(spreads["ttft"][p]) for p in ("p50", "p99")),
        *(seconds(spreads[name]["p50"]) for name in ("tpot", "e2e", "queue")),
        f"{spreads['length']['mean']:.1f}",
        f"{arm['cached_tokens'] / prompts:.0%}" if prompts else "-",
        "-" if arm["goodput"] is None else f"{arm['goodput']:.1%}",
        "-" if cost is None else f"{cost:.4g}",
        load,
    ]


def _reasons(arms: list[dict[str, Any]]) -> list[str]:
    names = sorted({name for arm in arms for name in arm["finish_reasons"]})
    if not names:
        return []
    rows = [[arm["name"], *(str(arm["finish_reasons"].get(n, 0)) for n in names)] for arm in arms]
    return ["<h2>Finish reasons</h2>", _table(["arm", *names], rows)]


def _by_class(arms: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            *(row["sla"] or "none", arm["name"], str(row["requests"])),
            _part(row["errors"], row["requests"]),
            *(_part(row[name], row["answered"]) for name in ("empty", "truncated")),
            *(seconds(row["spreads"]["ttft"][p]) for p in ("p50", "p99")),
            *(seconds(row["spreads"][name]["p50"]) for name in ("tpot", "e2e", "queue")),
            f"{row['spreads']['length']['mean']:.1f}",
            "-" if row["goodput"] is None else f"{row['goodput']:.1%}",
        ]
        for arm in arms
        for row in arm.get("classes", ())
    ]
    if not rows:
        return []
    names = ["SLA class", "arm", "requests", "failed", "empty", "truncated", "TTFT p50", "TTFT p99"]
    names += ["TPOT p50", "E2E p50", "queue p50", "tokens", "goodput"]
    return ["<h2>By SLA class</h2>", _table(names, sorted(rows))]


def _effects(report: dict[str, Any]) -> list[str]:
    whole = [each for each in report["effects"] if each["where"] == "all"]
    cells = [each for each in report["effects"] if each["where"] != "all"]
    note = (
        "An effect is the candidate's value over the control's, or a difference of shares. Its "
        "interval holds at every time of looking. Detectable is the smallest worsening that would "
        "be sure by now. Quantiles are of values over what is usual in their class and bucket."
    )
    mixed = (
        ""
        if report["same_mix"]
        else (
            "<p class='worse'>The arms' requests are of different kinds, so shares and quantiles "
            "are compared within classes and buckets only.</p>"
        )
    )
    parts = ["<h2>Effects, of the current stage</h2>", mixed, f"<p class='note'>{note}</p>"]
    parts.append(_effect_table(whole))
    parts += [forest(whole)]
    if cells:
        parts += ["<h2>By class and prompt length</h2>", _effect_table(cells)]
    return parts


def _effect_table(effects: Iterable[dict[str, Any]]) -> str:
    names = ["measure", "arm", "where", "candidate", "control", "effect", "interval"]
    names += ["detectable", "margin", "verdict"]
    rows: list[list[str]] = []
    for each in effects:
        share = each["kind"] == "share"
        margin = "" if each["margin"] is None else f"{each['margin']:.0%}"
        detectable = _detectable(each["detectable"])
        rows.append(
            [
                *(each["says"], each["arm"], each["where"]),
                *(_value(each[name], each) for name in ("candidate", "control")),
                _change(each["estimate"], share=share),
                f"{_change(each['low'], share=share)} to {_change(each['high'], share=share)}",
                *(detectable, margin, each["says_now"]),
            ]
        )
    return _table(names, rows, classes=True)


def _detectable(value: float | None) -> str:
    if value is None or value > _TOO_MUCH:
        return "-"
    return f"{value:.1%}"


def _traffic(report: dict[str, Any]) -> list[str]:
    rows = [
        [row["arm"], row["sla"] or "-", row["bucket"], str(row["requests"])]
        for row in report["traffic"]
    ]
    return [
        "<h2>Traffic</h2>",
        _table(["arm", "SLA class", "prompt tokens", "requests"], rows),
    ]


def _shadow(shadow: dict[str, Any] | None) -> list[str]:
    if not shadow:
        return []
    names = ["prompt tokens", "compared", "equal", "same finish", "distance", "not temperature 0"]
    names += ["JSON: caller's", "JSON: copy's", "logprob gap", "failed", "dropped"]
    rows: list[list[str]] = []
    for bucket, tally in shadow["buckets"].items():
        copies, asked = tally["copies"], tally["json_asked"]
        gaps = tally["logprob_gaps"]
        rows.append(
            [
                *(bucket, str(copies), _part(tally["exact"], copies)),
                _part(tally["same_finish"], copies),
                f"{tally['distance'] / copies:.3f}" if copies else "-",
                str(tally["sampled"]),
                *(_part(tally[name], asked) for name in ("json_first", "json_second")),
                f"{tally['logprob_gap'] / gaps:.4f}" if gaps else "-",
                *(str(tally["failed"]), str(tally["dropped"])),
            ]
        )
    parts = [f"<h2>Copies to {escape(shadow['arm'])}</h2>", _table(names, rows)]
    for pair in shadow.get("pairs", ()):
        cells = [[pair["first"], pair["second"]]]
        parts.append(_table(["caller's answer", "copy's answer"], cells, text=True))
    return parts


def _decisions(decisions: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            *(_date(each["at"]), each["who"], each["what"], each["arm"], str(each["requests"])),
            each["why"],
        ]
        for each in reversed(decisions)
    ]
    names = ["when", "who", "what", "arm", "requests", "why"]
    return ["<h2>Decisions</h2>", _table(names, rows) if rows else "<p>None so far.</p>"]


def _table(
    names: Iterable[str], rows: Iterable[list[str]], *, classes: bool = False, text: bool = False
) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(_row(row, classes=classes, text=text) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: list[str], *, classes: bool, text: bool) -> str:
    mark = f' class="{escape(row[-1])}"' if classes else ""
    kind = ' class="text"' if text else ""
    return f"<tr{mark}>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell in row) + "</tr>"


def _part(number: int, whole: int) -> str:
    return f"{number / whole:.1%}" if whole else "-"


def _value(value: float, effect: dict[str, Any]) -> str:
    if effect["kind"] == "share":
        return f"{value:.2%}"
    return f"{value:.4g}" if effect["measure"] == "length" else seconds(value)


def _change(value: float | None, *, share: bool) -> str:
    if value is None:
        return "no bound"
    return f"{value:+.2%}" if share else f"x{value:.3f}"


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
