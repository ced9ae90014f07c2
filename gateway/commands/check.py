"""`forebay check`: says whether a configuration is right, and if not, where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace

    from forebay.gateway.config.errors import ConfigErrors

    from .arguments import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="check a configuration file",
        description="Check a configuration file: prints each error with file, line and place, and "
        "exits with 1 when there is one.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the YAML file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Check the file."""
    from forebay.gateway.config import load

    try:
        config = load.read(arguments.file)
    except load.ConfigErrors as errors:
        print(_json(errors) if arguments.json else lines(arguments.file, errors))
        return 1
    if arguments.json:
        print(json.dumps({"ok": True, "errors": []}))
    else:
        endpoints = sum(len(pool.endpoints) for pool in config.pools)
        print(
            f"{arguments.file}: ok (pools: {len(config.pools)}, endpoints: {endpoints}, "
            f"tenants: {len(config.tenants)})"
        )
    return 0


def lines(file: Path, errors: ConfigErrors) -> str:
    """Return the errors for people and editors: `file:line: path: message`."""
    return "\n".join(
        ": ".join(
            part
            for part in (f"{file}:{each.line}" if each.line else f"{file}", each.path, each.message)
            if part
        )
        for each in errors.errors
    )


def _json(errors: ConfigErrors) -> str:
    told = [
        {"line": each.line, "path": each.path, "message": each.message} for each in errors.errors
    ]
    return json.dumps({"ok": False, "errors": told})
