"""`forebay replay`: what each ordering would have made of a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import positive

if TYPE_CHECKING:
    from argparse import Namespace

    from .arguments import Commands

_DESCRIPTION = """\
Run traces of requests through the simulator: modelled engines behind the very queue and orderings
that run live. Load is offered work over capacity; capacity is the endpoints' highest throughput of
the trace's requests when served first come, first served, and arrival times are scaled to the load.
"""
_EPILOG = """\
Traces are CSV or JSON lines, plain or .gz: arrival_s, prompt_tokens, output_tokens and maybe
tenant, session, max_tokens; or as Mooncake, Azure 2023, ServeGen, VTC, vidur and tau-bench have
them.
"""


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "replay",
        help="try orderings on a trace, in the simulator",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    option = parser.add_argument
    option("traces", metavar="TRACE", type=Path, nargs="+", help="a file of requests")
    option("--orders", type=names, default=["fcfs", "ml"], help="orderings, comma-separated")
    option("--endpoints", type=positive, default=2, help="engines (%(default)s)")
    option("--engine-profile", default="h200-8b", help="a name, or a file of `forebay calibrate`")
    option("--load", type=loads, default=[0.95], help="loads, comma-separated (0.95)")
    option(
        "--predictor",
        default="ssjf",
        help="oracle, encoder, linear, mean, none or ssjf (%(default)s)",
    )
    option("--seed", type=seeds, nargs="+", default=[[0]], help="seeds (0)")
    option("--requests", type=positive, metavar="N", help="only the first N of each trace")
    option(
        "--in-flight",
        type=positive,
        metavar="N",
        help="requests in flight at an endpoint (the least that make it as quick as it gets)",
    )
    option("--max-queue", type=positive, metavar="N", help="most that may wait (no limit)")
    option(
        "--longest-wait",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds after which a request is overdue; a tenth later it is refused (%(default)g)",
    )
    option(
        "--classes",
        type=classes,
        default=[],
        metavar="NAME:S:SHARE,...",
        help="SLA classes, lowest first, each with its longest wait and share of the requests",
    )
    option(
        "--tenants",
        choices=("auto", "each", "one"),
        default="auto",
        help="each client is a tenant, or all are one; auto: one for ServeGen, whose clients are "
        "parts that the load is drawn from, else each",
    )
    option(
        "--reserve",
        type=reserves,
        default={},
        metavar="TENANT+...:SHARE,...",
        help="a share of the places kept for some tenants together, such as vip1+vip2:0.2",
    )
    option("--json", action="store_true", help="print one JSON object")
    option("--plot", type=Path, metavar="FILE", help="write waits over load as an SVG picture")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Replay the traces."""
    from . import replay_plot, replay_runs

    if arguments.plot is not None and not arguments.plot.parent.is_dir():
        # Said before the runs, which may take long.
        print(f"forebay replay: --plot: no folder '{arguments.plot.parent}'", file=sys.stderr)
        return 2
    try:
        plan = replay_runs.make_plan(arguments)
    except ValueError as error:
        print(f"forebay replay: {error}", file=sys.stderr)
        return 2
    bar = Bar(plan.work)
    try:
        done = replay_runs.carry_out(plan, bar)
    finally:
        bar.end()
    if arguments.plot is not None:
        arguments.plot.write_text(replay_plot.picture(done.runs), encoding="utf-8")
    print(done.as_json() if arguments.json else done.as_table())
    return 0


class Bar:
    """Progress on stderr: a line that is written over, where somebody looks."""

    def __init__(self, work: int) -> None:
        self._work = work
        self._done = 0
        self._shown = -1
        self._live = sys.stderr.isatty()

    def at(self, requests: int, what: str) -> None:
        """Show how far the part under way is."""
        percent = min(100, 100 * (self._done + requests) // max(1, self._work))
        if self._live and percent != self._shown:
            self._shown = percent
            filled = "#" * (percent // 4)
            print(f"\r{percent:3d} % [{filled:<25}] {what:<50.50}", end="", file=sys.stderr)

    def finished(self, requests: int, what: str) -> None:
        """Count a part."""
        self._done += requests
        if not self._live:
            share = 100 * self._done // max(1, self._work)
            print(f"{share:3d} % {what}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line clean."""
        if self._live:
            print(f"\r{'':<82}\r", end="", file=sys.stderr, flush=True)


def names(text: str) -> list[str]:
    """Return comma-separated names."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise argparse.ArgumentTypeError("at least one name is needed")
    return list(dict.fromkeys(found))


def loads(text: str) -> list[float]:
    """Return comma-separated loads."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no load such as 0.95 or .7,.95") from None
    if not all(0 < load <= 10 for load in found):
        raise argparse.ArgumentTypeError("a load must be above 0 and at most 10")
    return found


def seconds(text: str) -> float:
    """Return a duration in seconds."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return found


def classes(text: str) -> list[tuple[str, float, float]]:
    """Return SLA classes: name, longest wait, share."""
    found: list[tuple[str, float, float]] = []
    for part in text.split(","):
        name, *numbers = part.split(":")
        if not name or len(numbers) != 2:
            raise argparse.ArgumentTypeError(f"'{part}' is no class such as batch:300:0.7")
        found.append((name, seconds(numbers[0]), seconds(numbers[1])))
    return found


def reserves(text: str) -> dict[str, float]:
    """Return shares of the places by the names of their tenants, joined by +."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.rpartition(":")
        try:
            found[name] = float(share)
        except ValueError:
            found[name] = 0.0
        if not all(name.split("+")) or not 0 < found[name] <= 1:
            raise argparse.ArgumentTypeError(f"'{part}' is no reserve such as vip1+vip2:0.2")
    return found


def seeds(text: str) -> list[int]:
    """Return comma-separated whole numbers."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number such as 0 or 0,1,2")
    return [int(part) for part in parts]
