"""`forebay check`: says whether a configuration is right, and if not, where not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from forebay.gateway.config.errors import ConfigErrors, Fault
    from forebay.gateway.config.sections import Config

    from .arguments import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="check a configuration file",
        description="Check a configuration file, and what it needs on this machine: prints each "
        "error with file, line and place, and exits with 1 when there is one. Warns of keys that "
        "do nothing.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the YAML file")
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="it is for another machine: do not look for the files and extras that it needs",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Check the file."""
    from forebay.gateway.config.errors import ConfigErrors

    try:
        config, warnings = _checked(arguments.file, elsewhere=arguments.elsewhere)
    except ConfigErrors as errors:
        print(_json(errors.errors) if arguments.json else lines(arguments.file, errors))
        return 1
    if arguments.json:
        print(_json((), warnings))
        return 0
    for each in warnings:
        print(_line(arguments.file, each, "warning"))
    endpoints = sum(len(pool.endpoints) for pool in config.pools)
    print(
        f"{arguments.file}: ok (pools: {len(config.pools)}, endpoints: {endpoints}, "
        f"tenants: {len(config.tenants)}{f', warnings: {len(warnings)}' if warnings else ''})"
    )
    return 0


def _checked(file: Path, *, elsewhere: bool) -> tuple[Config, list[Fault]]:
    """Return what is configured, and warnings. Raises ConfigErrors."""
    from forebay.gateway.config import load
    from forebay.gateway.config.errors import ConfigErrors
    from forebay.gateway.config.idle import find_idle

    config, tree = load.read_with_lines(file)
    if not elsewhere:
        from forebay.gateway.needs import find_missing

        missing = [tree.fault(*each) for each in find_missing(config, file)]
        if missing:
            raise ConfigErrors(tuple(sorted(missing)))
    return config, sorted(tree.fault(*each) for each in find_idle(config, time.time()))


def lines(file: Path, errors: ConfigErrors) -> str:
    """Return the errors for people and editors: `file:line: path: message`."""
    return "\n".join(_line(file, each) for each in errors.errors)


def _line(file: Path, fault: Fault, kind: str = "") -> str:
    where = f"{file}:{fault.line}" if fault.line else f"{file}"
    return ": ".join(part for part in (where, kind, fault.path, fault.message) if part)


def _json(errors: Sequence[Fault], warnings: Sequence[Fault] = ()) -> str:
    told = {"ok": not errors, "errors": _told(errors), "warnings": _told(warnings)}
    return json.dumps(told)


def _told(faults: Sequence[Fault]) -> list[dict[str, object]]:
    return [{"line": e.line, "path": e.path, "message": e.message} for e in faults]
