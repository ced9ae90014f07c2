"""`forebay prefix warm`: have a running gateway prefill hot prefixes at endpoints."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .asking import KEY, add_address, ask

if TYPE_CHECKING:
    from argparse import Namespace

    from .arguments import Commands

_EVERY_S = 0.5


def add(actions: Commands) -> None:
    """Declare the command."""
    parser = actions.add_parser(
        "warm",
        help="prefill hot prefixes at an endpoint",
        description="Have a running gateway prefill the prefixes that many prompts begin with, at "
        "the rate of the pool's prefix.warm and only in the gaps that callers leave. It does so by "
        f"itself for endpoints that join. {KEY} holds the admin key, where there is one.",
    )
    parser.add_argument("pool", metavar="POOL", help="which pool")
    parser.add_argument("endpoints", nargs="*", metavar="ENDPOINT", help="where (all of the pool)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until they are warm")
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Begin, wait, and print what was sent."""
    names = arguments.endpoints or _endpoints(arguments)
    begun = [ask("POST", arguments.admin, _path(arguments.pool, name)) for name in names]
    left = {each["endpoint"]: each["left"] for each in begun if each["left"]}
    while left and not arguments.no_wait:
        print(f"{_prompts(sum(left.values()))} left", file=sys.stderr)
        time.sleep(_EVERY_S)
        asked = [ask("GET", arguments.admin, _path(arguments.pool, name)) for name in left]
        left = {each["endpoint"]: each["left"] for each in asked if each["left"]}
    if arguments.json:
        print(json.dumps({"pool": arguments.pool, "endpoints": [_row(each) for each in begun]}))
    else:
        for each in begun:
            print(f"{each['endpoint']}: {_sent(each['left'])}")
    return 0


def _sent(count: int) -> str:
    if count:
        return f"{_prompts(count)} to send"
    return "nothing to send: it holds every hot prefix, or none is hot yet"


def _prompts(count: int) -> str:
    return f"{count} prompt{'' if count == 1 else 's'}"


def _row(begun: dict[str, Any]) -> dict[str, Any]:
    return {"endpoint": begun["endpoint"], "prompts": begun["left"]}


def _endpoints(arguments: Namespace) -> list[str]:
    from forebay.gateway.config.suggest import did_you_mean
    from forebay.policies.contracts import ForebayError

    pools = {pool["name"]: pool for pool in ask("GET", arguments.admin, "/status")["pools"]}
    if arguments.pool in pools:
        return [each["name"] for each in pools[arguments.pool]["endpoints"] if each["usable"]]
    hint = did_you_mean(arguments.pool, pools) or f"; there are: {', '.join(pools)}"
    raise ForebayError(f"{arguments.admin}: there is no pool '{arguments.pool}'{hint}")


def _path(pool: str, endpoint: str) -> str:
    return f"/pools/{quote(pool, safe='')}/endpoints/{quote(endpoint, safe='')}/warm"
