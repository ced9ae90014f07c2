"""`forebay kernels`: hands over to the kernels' own command, loaded by name and only then.

The one place where anything outside `kernels` knows of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from forebay.policies.contracts import ForebayError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from .arguments import Commands

_DOCTOR = "forebay.kernels.doctor"


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
            raise ForebayError(
                f"the kernels need {error.name}: pip install 'forebay[kernels]'"
            ) from error
        if error.name and module.startswith(error.name):
            raise ForebayError("the kernels' command is not in this version") from error
        raise
    return doctor.main(list(arguments))
