"""What `forebay replay` carries out: reads traces, measures capacity, runs, and tells it."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.gateway.config.suggest import did_you_mean
from forebay.policies.registry import ORDERINGS
from forebay.scheduler import traces
from forebay.scheduler.build import Scheduling
from forebay.scheduler.engine_profiles import find_profile
from forebay.scheduler.guards import GuardSettings
from forebay.scheduler.twin import (
    Class,
    Settings,
    enough_in_flight,
    make_guess,
    measure_capacity,
    scale_to,
    simulate,
    summarise,
)
from forebay.scheduler.twin.guess import GUESSES, SIZED
from forebay.scheduler.twin.run import NO_LIMIT

from .profile_file import read_profile

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence
    from typing import Protocol

    from forebay.scheduler.engine_profiles import Profile
    from forebay.scheduler.traces import TraceRequest
    from forebay.scheduler.twin import Capacity

    class Progress(Protocol):
        """Is told how far things are."""

        def at(self, requests: int, what: str) -> None:
            """Show how far the part under way is."""
            ...

        def finished(self, requests: int, what: str) -> None:
            """Count a part."""
            ...


_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("trace", lambda run: run["trace"]),
    ("load", lambda run: f"{run['load']:g}"),
    ("seed", lambda run: str(run["seed"])),
    ("order", lambda run: run["order"]),
    ("mean wait", lambda run: f"{run['mean_wait_s']:.3f}"),
    ("p99 wait", lambda run: f"{run['p99_wait_s']:.3f}"),
    ("mean TTFT", lambda run: f"{run['mean_ttft_s']:.3f}"),
    ("goodput", lambda run: f"{run['goodput_share']:.3f}"),
    ("jain", lambda run: f"{run['jain']:.3f}" if run["jain_stretches"] else "-"),
    ("refused", lambda run: str(run["rejected"])),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was asked for, checked."""

    traces: dict[str, list[TraceRequest]]
    orders: list[str]
    loads: list[float]
    seeds: list[int]
    predictor: str
    settings: Settings
    in_flight: int | None
    guards: GuardSettings
    reserves: dict[str, float]

    def scheduling(self, order: str) -> Scheduling:
        """Return how one run orders; what shuffles by length needs lengths that differ."""
        predicts = self.predictor in SIZED
        return Scheduling(
            order=order, predicts=predicts, guards=self.guards, reserves=self.reserves
        )

    @property
    def work(self) -> int:
        """How many requests are simulated in all, those that measure capacity too."""
        runs = 1 + len(self.orders) * len(self.loads) * len(self.seeds)
        return runs * sum(len(trace) for trace in self.traces.values())


@dataclass(frozen=True, slots=True)
class Done:
    """All runs, each as the JSON shows it."""

    runs: list[dict[str, Any]]
    wall_s: float

    def as_json(self) -> str:
        """Return the one JSON object."""
        return json.dumps({"runs": self.runs, "wall_s": round(self.wall_s, 3)})

    def as_table(self) -> str:
        """Return a table for people, with the capacities over it."""
        capacities = dict.fromkeys(
            f"{run['trace']}: capacity {run['capacity_rps']:.2f} requests/s"
            f" ({run['endpoints']} x {run['engine_profile']}, {run['in_flight']} in flight each)"
            for run in self.runs
        )
        rows = [[name for name, _ in _COLUMNS]]
        rows += [[show(run) for _, show in _COLUMNS] for run in self.runs]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) for r in rows)
        requests = sum(run["requests"] for run in self.runs)
        speed = f"{requests} requests in {self.wall_s:.1f} s of wall time, measuring included"
        return "\n".join([*capacities, "", *lines, "", speed])


def make_plan(arguments: Namespace) -> Plan:
    """Check what was asked for and read the traces; raises ValueError."""
    for order in arguments.orders:
        if order not in ORDERINGS:
            hint = did_you_mean(order, ORDERINGS)
            raise ValueError(f"no ordering {order!r}: take some of {', '.join(ORDERINGS)}{hint}")
    if arguments.predictor not in GUESSES:
        known = ", ".join(GUESSES)
        hint = did_you_mean(arguments.predictor, GUESSES)
        raise ValueError(f"no predictor {arguments.predictor!r}: take one of {known}{hint}")
    read = dict(_named(arguments))
    settings = Settings(
        profile=profile_of(arguments.engine_profile),
        endpoints=arguments.endpoints,
        max_queue=arguments.max_queue or NO_LIMIT,
        classes=tuple(Class(*each) for each in arguments.classes),
        reserve_of=_reserve_of(arguments.reserve, read),
    )
    return Plan(
        traces=read,
        orders=arguments.orders,
        loads=arguments.load,
        seeds=[seed for group in arguments.seed for seed in group],
        predictor=arguments.predictor,
        settings=settings,
        in_flight=arguments.in_flight,
        guards=GuardSettings(longest_wait=arguments.longest_wait),
        reserves=arguments.reserve,
    )


def _reserve_of(reserves: dict[str, float], read: dict[str, list[TraceRequest]]) -> dict[str, str]:
    """Return each tenant's reserve; raises ValueError for tenants that no trace has."""
    found = {tenant: name for name in reserves for tenant in name.split("+")}
    for tenant in found:
        if not any(request.tenant == tenant for trace in read.values() for request in trace):
            raise ValueError(f"no trace has a tenant {tenant!r} (see --tenants)")
    return found


def profile_of(name: str) -> Profile:
    """Return a profile by its name, or from a file; raises ValueError."""
    if name.endswith(".json") or "/" in name:
        return read_profile(Path(name))
    return find_profile(name)


def read_trace(
    path: Path, *, requests: int | None = None, tenants: str = "each"
) -> list[TraceRequest]:
    """Read a trace from a file, packed or not; raises ValueError that names the file."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            lines = list(file)
        trace = traces.parse(lines)[:requests]
        first = next(line for line in lines if line.strip())
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from None
    if tenants == "one" or (tenants == "auto" and traces.format_of(first) == "servegen"):
        return [request._replace(tenant="") for request in trace]
    return trace


def carry_out(plan: Plan, progress: Progress) -> Done:
    """Run everything."""
    begun = time.perf_counter()
    runs: list[dict[str, Any]] = []
    for name, trace in plan.traces.items():
        progress.at(0, f"{name}: in flight")
        limit = plan.in_flight or enough_in_flight(trace, plan.settings)
        settings = replace(plan.settings, max_in_flight=limit)
        what = f"{name}: capacity"
        capacity = measure_capacity(trace, settings, progress=lambda n, w=what: progress.at(n, w))
        progress.finished(len(trace), f"{what} {capacity.requests_per_s:.2f} requests/s")
        for load in plan.loads:
            scaled = scale_to(load, trace, capacity)
            for seed in plan.seeds:
                for order in plan.orders:
                    made = replace(settings, scheduling=plan.scheduling(order), seed=seed)
                    runs.append(_run(name, scaled, made, plan.predictor, progress, load, capacity))
    return Done(runs, time.perf_counter() - begun)


def _run(  # noqa: PLR0913, PLR0917 - what a run is made with, and told with
    name: str,
    trace: Sequence[TraceRequest],
    settings: Settings,
    predictor: str,
    progress: Progress,
    load: float,
    capacity: Capacity,
) -> dict[str, Any]:
    what = f"{name}: {settings.scheduling.order} at {load:g}, seed {settings.seed}"
    guess = make_guess(predictor, trace, settings.seed)
    lives = simulate(trace, settings, guess, progress=lambda n: progress.at(n, what))
    progress.finished(len(trace), what)
    return {
        "trace": name,
        "order": settings.scheduling.order,
        "predictor": predictor,
        "load": load,
        "seed": settings.seed,
        **_rounded(asdict(summarise(trace, lives, settings))),
        "capacity_rps": round(capacity.requests_per_s, 6),
        "natural_load": round(capacity.natural_load, 6),
        "endpoints": settings.endpoints,
        "engine_profile": settings.profile.name,
        "in_flight": settings.limit,
        "max_queue": settings.max_queue,
        "longest_wait_s": guards.longest_wait if (guards := settings.scheduling.guards) else None,
        "reserves": dict(settings.scheduling.reserves),
        "classes": {each.name: asdict(each) for each in settings.classes},
        "tenants": len({request.tenant for request in trace}),
    }


def _named(arguments: Namespace) -> Iterator[tuple[str, list[TraceRequest]]]:
    seen: set[str] = set()
    for path in arguments.traces:
        name = path.name.split(".")[0]
        if name in seen:
            raise ValueError(f"two traces are named {name!r}")
        seen.add(name)
        yield name, read_trace(path, requests=arguments.requests, tenants=arguments.tenants)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType] - JSON
    return round(value, 6) if isinstance(value, float) else value
