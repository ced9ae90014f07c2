"""What a decision costs: CPU microseconds a request, with a given number waiting.

Each step is one request's whole way through the core at a steady depth: one arrives and waits, one
that ran ends with its true cost, and whoever is next is placed. Run it by hand:

    python benchmarks/bench_scheduler.py [--waiting 10000] [--tenants 50]
"""

from __future__ import annotations

import argparse
from itertools import islice
from math import inf
from random import Random
from time import process_time

from forebay.policies.contracts import EndpointView, Placement, Request, Route
from forebay.policies.registry import ORDERINGS
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.guards import GuardSettings

_STRETCHES = 10


def requests(count: int, tenants: int) -> list[Request]:
    """Make requests of mixed sizes."""
    rng = Random(1)
    return [
        Request(
            id=f"{n:032x}",
            pool="p",
            route=Route.CHAT,
            model="m",
            tenant=f"t{rng.randrange(tenants)}",
            sequence=n,
            arrived=n * 0.001,
            deadline=1e9,
            prompt_tokens_estimate=1,
            output_tokens_estimate=int(rng.lognormvariate(5, 1.2)) + 1,
            uncached_tokens=int(rng.lognormvariate(6, 1.5)) + 1,
            stream=True,
        )
        for n in range(count)
    ]


def measure(order: str, waiting: int, tenants: int, *, guarded: bool, steps: int = 10_000) -> float:
    """Return CPU microseconds a request."""
    scheduling = Scheduling(order, predicts=True, guards=GuardSettings() if guarded else None)
    core = make_dispatcher(
        scheduling, pool="p", rng=Random(1), max_requests=1 << 30, max_bytes=1 << 60
    )
    core.set_endpoints([EndpointView(f"e{n}", "sim", 64) for n in range(4)])
    some = requests(waiting + 256 + steps, tenants)
    running = list[Placement]()
    for request in some[: waiting + 256]:
        placement = core.submit(request, request.arrived)
        if placement is not None:
            running.append(placement)
    rng, best = Random(2), inf
    rest = iter(some[waiting + 256 :])
    for _ in range(_STRETCHES):
        began, count = process_time(), 0
        for request in islice(rest, steps // _STRETCHES):
            count += 1
            now = request.arrived
            core.submit(request, now)
            ended = running.pop(rng.randrange(256))
            running.extend(core.release(ended, now, 0.8 * ended.cost))
            core.take_others()
        best = min(best, (process_time() - began) / count * 1e6)
    return best


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="*", default=[0, 100, 10_000, 100_000])
    parser.add_argument("--tenants", type=int, default=50)
    args = parser.parse_args()
    print("us a request, plain/guarded, by requests waiting")
    print("order   ", *(f"{waiting:>15,}" for waiting in args.waiting))
    for order in ORDERINGS:
        cells = [
            "/".join(
                f"{measure(order, waiting, args.tenants, guarded=guarded):.1f}"
                for guarded in (False, True)
            )
            for waiting in args.waiting
        ]
        print(f"{order:8}", *(f"{cell:>15}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
