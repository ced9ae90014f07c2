"""`forebay kernels`: hands over to the kernels' own command, loaded by name and only then.

The one place where anything outside `kernels` knows of it. Imports nothing but the standard
library, since in an engine's environment there is nothing else of what the gateway needs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from .arguments import Commands

_DOCTOR = "forebay.kernels.doctor"
SPEC = "forebay.kernels.speculative.command"
"""What `forebay spec` hands over to."""


def add(commands: Commands) -> None:
    """Declare the command, for the list of commands; its arguments go to `forward`."""
    parser = commands.add_parser(
        "kernels", add_help=False, help="check and tune the GPU kernels (needs torch)"
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Run it without arguments."""
    del arguments
    return forward([])


def forward(arguments: Sequence[str], *, module: str = _DOCTOR) -> int:
    """Hand the arguments over and return the exit code."""
    try:
        doctor = import_module(module)
    except ModuleNotFoundError as error:
        if error.name in {"torch", "triton"}:
            install = "in forebay's checkout: pip install '.[kernels]'"
            return _fail(f"the kernels need {error.name}; {install}")
        if error.name and module.startswith(error.name):
            return _fail("the kernels' command is not in this version")
        raise
    # Of the kernels' own there is one command so far, which need not be named.
    unnamed = module == _DOCTOR and arguments[:1] == ["doctor"]
    own = arguments[1:] if unnamed else arguments
    try:
        return doctor.main(list(own))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0


def _fail(text: str) -> int:
    print(f"forebay: {text}", file=sys.stderr)
    return 1
