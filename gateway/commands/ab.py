"""`forebay ab`: look at experiments, promote them, take them back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from forebay.gateway.experiments.wording import seconds

from .asking import KEY, add_address

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from .arguments import Commands

_CHANGES = {
    "promote": "give the candidates the next stage's share; after the last stage, everything",
    "pause": "keep the shares as they are; guardrails still roll back",
    "resume": "let a paused experiment go on",
    "rollback": "give everything back to the control",
    "restart": "begin anew, with new counts",
}


def add(commands: Commands) -> None:
    """Declare the commands."""
    parser = commands.add_parser(
        "ab",
        help="look at A/B experiments, promote them, take them back",
        description="Look at the experiments of a running gateway, promote them, take them back. "
        f"{KEY} holds the admin key, where there is one.",
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    status = inner.add_parser("status", help="where the experiments are")
    status.add_argument("name", nargs="?", help="of this one only")
    _ask(status)
    status.set_defaults(run=show)
    report = inner.add_parser("report", help="what an experiment has shown so far")
    report.add_argument("name", help="which experiment")
    report.add_argument(
        "--html", metavar="FILE", type=Path, help="write one self-contained page to this file"
    )
    _ask(report)
    report.set_defaults(run=tell)
    for what, text in _CHANGES.items():
        change = inner.add_parser(what, help=text, description=text.capitalize() + ".")
        change.add_argument("name", help="which experiment")
        if what in {"promote", "rollback"}:
            change.add_argument("--arm", default="", help="which candidate; default: the only one")
        _ask(change)
        change.set_defaults(run=decide, what=what, arm="")


def _ask(parser: ArgumentParser) -> None:
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def show(arguments: Namespace) -> int:
    """Print where the experiments are."""
    asked = _request(
        "GET", arguments, "" if arguments.name is None else f"/{quote(arguments.name, safe='')}"
    )
    reports: list[dict[str, Any]] = asked.get("experiments", [asked])
    if arguments.json:
        return _print_json({"experiments": reports})
    if not reports:
        print("there are no experiments")
    for report in reports:
        print(_summary(report))
    return 0


def tell(arguments: Namespace) -> int:
    """Print or write a report."""
    report = _request("GET", arguments, f"/{quote(arguments.name, safe='')}")
    if arguments.html is not None:
        from forebay.gateway.experiments.report_page import page

        arguments.html.write_text(page(report), encoding="utf-8")
        print(f"wrote {arguments.html}", file=sys.stderr)
    if arguments.json:
        return _print_json(report)
    if arguments.html is None:
        print("\n".join([_summary(report), *_effects(report), *_copies(report.get("shadow"))]))
    return 0


def decide(arguments: Namespace) -> int:
    """Change an experiment and print where it is now."""
    report = _request("POST", arguments, f"/{quote(arguments.name, safe='')}/{arguments.what}")
    if arguments.json:
        return _print_json(report)
    print(_summary(report))
    return 0


def _print_json(value: object) -> int:
    import json

    print(json.dumps(value))
    return 0


def _request(method: str, arguments: Namespace, path: str) -> dict[str, Any]:
    from .asking import ask

    params = {"arm": arguments.arm} if getattr(arguments, "arm", "") else None
    return ask(method, arguments.admin, f"/experiments{path}", params=params)


def _summary(report: dict[str, Any]) -> str:
    stages = report["stages"]
    where = f", stage {report['stage'] + 1} of {len(stages)}" if stages else ""
    lines = [f"{report['name']} (pool {report['pool']}): {report['phase']}{where}"]
    rows = [("arm", "role", "share", "requests", "failed", "ttft p50", "ttft p99", "tpot p50")]
    rows += [_arm_row(arm) for arm in report["arms"]]
    lines += _table(rows)
    lines += [_decided(each) for each in report["decisions"][-3:]]
    return "\n".join(lines)


def _arm_row(arm: dict[str, Any]) -> tuple[str, ...]:
    ttft, tpot = arm["spreads"]["ttft"], arm["spreads"]["tpot"]
    failed = arm["errors"] / arm["requests"] if arm["requests"] else 0.0
    return (
        *(arm["name"], arm["role"], f"{arm['share']:.0%}", str(arm["requests"]), f"{failed:.1%}"),
        *(seconds(ttft["p50"]), seconds(ttft["p99"]), seconds(tpot["p50"])),
    )


def _decided(decision: dict[str, Any]) -> str:
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(decision["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    arm = f" {decision['arm']}" if decision["arm"] else ""
    return f"  {at} {decision['who']}: {decision['what']}{arm}: {decision['why']}"


def _effects(report: dict[str, Any]) -> list[str]:
    rows = [("measure", "arm", "candidate", "control", "effect", "interval", "margin", "verdict")]
    rows += [_effect_row(each) for each in report["effects"] if each["where"] == "all"]
    note = (
        [] if report["same_mix"] else ["  the arms' mixes differ: see single classes and buckets"]
    )
    return [*_table(rows), *note] if len(rows) > 1 else []


def _copies(shadow: dict[str, Any] | None) -> list[str]:
    if not shadow:
        return []
    rows = [(f"copies to {shadow['arm']}, prompt tokens", "compared", "equal", "failed", "dropped")]
    for bucket, tally in shadow["buckets"].items():
        copies = tally["copies"]
        equal = f"{tally['exact'] / copies:.0%}" if copies else "-"
        rows.append((bucket, str(copies), equal, str(tally["failed"]), str(tally["dropped"])))
    return _table(rows)


def _effect_row(effect: dict[str, Any]) -> tuple[str, ...]:
    share = effect["kind"] == "share"
    form = "{:+.2%}".format if share else "x{:.3f}".format
    value = "{:.2%}".format if share else "{:.4g}".format
    high = "none" if effect["high"] is None else form(effect["high"])
    margin = "" if effect["margin"] is None else f"{effect['margin']:.0%}"
    return (
        *(effect["measure"], effect["arm"], value(effect["candidate"]), value(effect["control"])),
        *(form(effect["estimate"]), f"{form(effect['low'])} to {high}", margin),
        effect["says_now"],
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
