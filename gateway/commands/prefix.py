"""`forebay prefix`: what placement by prefix would have hit on a trace, and warming."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from . import prefix_warm
from .arguments import above_zero, positive

if TYPE_CHECKING:
    from argparse import Namespace

    from forebay.scheduler.traces import TraceRequest
    from forebay.scheduler.twin.prefixes import PrefixRun

    from .arguments import Commands

_HEAD = "trace", "policy", "blocks", "hit", "endless", "one cache", "load"
_POLICIES = "sticky_until_saturated,least_load,round_robin,session_hash"


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "prefix",
        help="look at prefix caching, warm endpoints",
        description="Look at prefix caching, warm endpoints.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    replay = actions.add_parser(
        "replay",
        help="try placements on a trace whose blocks are known",
        description="Run a trace over several prefix caches, placed by each policy in turn. The "
        "trace needs hash ids, as Mooncake's and tau-bench's have.",
    )
    replay.add_argument("traces", metavar="TRACE", type=Path, nargs="+", help="a file of requests")
    replay.add_argument("--policy", default=_POLICIES, help="comma-separated (all)")
    replay.add_argument("--endpoints", type=positive, default=8, help="caches (%(default)s)")
    replay.add_argument(
        "--blocks", type=positive, help="blocks of each (default: all together hold the trace)"
    )
    replay.add_argument(
        "--share",
        type=above_zero,
        default=1.0,
        help="of the trace's blocks that all hold (%(default)s)",
    )
    replay.add_argument(
        "--stickiness", type=above_zero, default=16.0, help="as in the pool (%(default)s)"
    )
    replay.add_argument(
        "--replicas", type=positive, default=1, help="gateways, by turns (%(default)s)"
    )
    replay.add_argument("--seed", type=int, default=0, help="spreads ties (%(default)s)")
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.set_defaults(run=run)
    prefix_warm.add(actions)


def run(arguments: Namespace) -> int:
    """Replay and print."""
    from forebay.gateway.config.suggest import did_you_mean
    from forebay.policies.contracts import ConfigError
    from forebay.scheduler.twin import prefixes

    runs: list[dict[str, object]] = []
    for path in arguments.traces:
        requests = _read(path)
        needed = prefixes.working_set(requests)
        if not needed:
            raise ConfigError(f"{path}: no hash ids, so its prefixes are not known")
        blocks = arguments.blocks or max(1, int(needed * arguments.share / arguments.endpoints))
        for policy in arguments.policy.split(","):
            if policy not in prefixes.POLICIES:
                hint = did_you_mean(policy, prefixes.POLICIES) or f"; there are {_POLICIES}"
                raise ConfigError(f"no policy is named '{policy}'{hint}")
            made = prefixes.replay(
                requests,
                policy,
                endpoints=arguments.endpoints,
                blocks_per_endpoint=blocks,
                stickiness=arguments.stickiness,
                seed=arguments.seed,
                replicas=arguments.replicas,
            )
            runs.append({"trace": path.name, **dataclasses.asdict(made)})
            if not arguments.json:
                _show(path.name, made, first=len(runs) == 1)
    if arguments.json:
        print(json.dumps({"runs": runs}))
    return 0


def _read(path: Path) -> list[TraceRequest]:
    from forebay.policies.contracts import ConfigError

    from .replay_runs import read_trace

    try:
        return read_trace(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _show(trace: str, made: PrefixRun, *, first: bool) -> None:
    row = "{:32} {:24} {:>8} {:>6} {:>8} {:>10} {:>6}"
    if first:
        print(row.format(*_HEAD))
    shares = (made.hit_token_share, made.infinite_shared_share, made.one_cache_share)
    hit, endless, one = (f"{share:.3f}" for share in shares)
    load = f"{made.load_p95_max_over_mean:.2f}"
    print(row.format(trace[:32], made.policy, made.blocks_per_endpoint, hit, endless, one, load))
