"""`forebay engine sim`: the embedded engine as a server of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from forebay.policies.contracts import ConfigError

from .arguments import port

if TYPE_CHECKING:
    from argparse import Namespace

    from .arguments import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "engine", help="run an engine to try things on", description="Run an engine."
    )
    engines = parser.add_subparsers(metavar="ENGINE", required=True)
    sim = engines.add_parser(
        "sim",
        help="the embedded engine",
        description="Run the embedded engine: continuous batching with a prefix cache, in the "
        "pace of a real one, without a model. It speaks OpenAI, and Anthropic's messages.",
    )
    sim.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    sim.add_argument("--port", type=port, required=True, help="port to listen on; 0 picks one")
    sim.add_argument("--model", default="sim", help="the model's name (%(default)s)")
    sim.add_argument("--seed", type=int, default=0, help="same seed, same answers (%(default)s)")
    sim.add_argument("--profile", default="demo", help="step times (%(default)s)")
    sim.add_argument(
        "--fault", metavar="NAME[:SHARE]", help="go wrong, for all or a share of the requests"
    )
    sim.add_argument("--kv-events", metavar="ENDPOINT", help="publish KV events, as tcp://*:5557")
    sim.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Serve the embedded engine until told to stop."""
    from forebay.adapters.sim import Embedded
    from forebay.gateway.server import serve_engine

    try:
        embedded = Embedded(
            model=arguments.model,
            seed=arguments.seed,
            profile=arguments.profile,
            fault=arguments.fault,
            kv_events=arguments.kv_events,
        )
    except ConfigError as error:
        print(f"forebay engine sim: {error.message}", file=sys.stderr)
        return 2
    return serve_engine(embedded, host=arguments.host, port=arguments.port)
