"""`forebay serve`: run the gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import port, positive

if TYPE_CHECKING:
    from argparse import Namespace

    from .arguments import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway. SIGTERM drains it; SIGHUP or a changed file reloads it.",
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", type=Path, required=True, help="the YAML file"
    )
    parser.add_argument("--host", help="instead of server.host")
    parser.add_argument("--port", type=port, help="instead of server.port; 0 picks one")
    parser.add_argument("--workers", type=positive, default=1, help="processes (only 1 so far)")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Serve until told to stop."""
    from forebay.gateway.config.errors import ConfigErrors

    from .check import lines

    if arguments.workers > 1:
        raise ConfigErrors.single(
            "more than one worker is not in this version; run several replicas with state.url"
        )
    from forebay.gateway.server import serve

    try:
        return serve(arguments.config, host=arguments.host, port=arguments.port)
    except ConfigErrors as errors:
        print(lines(arguments.config, errors), file=sys.stderr)
        return 1
