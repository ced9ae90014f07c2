"""The `forebay` command line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrongly called."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["kernels"]:
        # Inside an engine's environment nothing of the gateway's is installed. Its own options are
        # its own business, `--help` among them.
        from .commands import kernels  # noqa: PLC0415 - only what is asked for

        return kernels.forward(arguments[1:])
    if arguments[:1] == ["spec"]:
        from .commands import kernels  # noqa: PLC0415 - likewise

        return kernels.forward(arguments[1:], module=kernels.SPEC)
    from .commands import line  # noqa: PLC0415 - only what is asked for

    return line.run(arguments)
