"""The command line as a whole: which commands there are, and how errors end."""

from __future__ import annotations

import errno
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from forebay import __version__
from forebay.policies.contracts import ForebayError

from . import (
    ab,
    calibrate,
    check,
    demo,
    engine,
    kernels,
    keys,
    predictor,
    prefix,
    replay,
    serve,
    spec,
    usage,
)
from .arguments import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = (
    serve,
    demo,
    check,
    keys,
    engine,
    replay,
    predictor,
    prefix,
    calibrate,
    usage,
    ab,
    kernels,
    spec,
)
_FAILED = 1
_HINTS = {
    errno.ENOENT: "; give a path that is there",
    errno.EACCES: "; give a path that this user may read or write",
    errno.EROFS: "; give a path on a disk that can be written to",
    errno.ENOSPC: "; make room, or give a path on another disk",
}


def shown_version() -> str:
    """Name the version, and whether the hot path is compiled (see hatch_build.py)."""
    found = find_spec("forebay.scheduler.dispatch")
    compiled = found is not None and not str(found.origin).endswith(".py")
    return f"forebay {__version__}" + (", its hot path compiled" if compiled else "")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        chosen = _parser().parse_args(arguments)
        return chosen.run(chosen)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except ForebayError as error:
        print(f"forebay: {error.message}", file=sys.stderr)
    except BrokenPipeError:
        raise  # for whoever owns the output to end quietly
    except OSError as error:
        print(f"forebay: {_of_the_system(error)}", file=sys.stderr)
    return _FAILED


def _of_the_system(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return where + (error.strerror or str(error)).lower() + _HINTS.get(error.errno or 0, "")


def _parser() -> Parser:
    parser = Parser(
        prog="forebay",
        description="One OpenAI-compatible address in front of vLLM, SGLang, TensorRT-LLM and "
        "llama.cpp.",
        epilog="'forebay COMMAND --help' tells more. Exit codes: 0 done, 1 failed, 2 wrong call.",
    )
    parser.add_argument("--version", action="version", version=shown_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(commands)
    return parser
