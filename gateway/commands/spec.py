"""`forebay spec`: hands over to the kernels' speculative command, as `forebay kernels` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .kernels import SPEC, forward

if TYPE_CHECKING:
    from argparse import Namespace

    from .arguments import Commands


def add(commands: Commands) -> None:
    """Declare the command, for the list of commands; its arguments go to `kernels.forward`."""
    parser = commands.add_parser(
        "spec", add_help=False, help="speculative decoding: heads, stores of answers, advice"
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Run it without arguments."""
    del arguments
    return forward([], module=SPEC)
