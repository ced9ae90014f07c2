# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: T201
# (printing is what a command does)
"""`forebay spec`: train heads, evaluate them, keep stores of answers, say what to use where.

Runs in an engine's environment too, where nothing of the gateway is installed.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import command_advice, command_eval, command_store
from .arguments import device, number, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .heads.training import Progress

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str]) -> int:
    """Run one action and return its exit code: 0 done, 1 failed, 2 wrongly called."""
    arguments = make_parser().parse_args(list(argv))
    try:
        told = arguments.run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "triton"}:
            raise
        install = "in forebay's checkout: pip install '.[kernels]'"
        print(f"forebay: this needs {error.name}; {install}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"forebay: {_of_the_system(error)}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print(
            "forebay: not enough memory; a store takes some 50 bytes a token while it is sorted,"
            " so build several, or give --max-tokens",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("forebay: stopped; the same command goes on from the last save", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(told))
    elif told:
        _print(told)
    return 0


_HINTS = {
    errno.ENOENT: "give the path of something that is there",
    errno.EISDIR: "it is a folder, give a file",
    errno.ENOTDIR: "a part of the path is a file, give a folder",
    errno.EACCES: "give a path that this user may read or write",
    errno.EPERM: "give a path that this user may read or write",
    errno.EROFS: "give a path on a disk that can be written to",
    errno.ENOSPC: "make room, or give a path on another disk",
}


def _of_the_system(error: OSError) -> str:
    """Say what went wrong, with which path, and what to do."""
    what = (error.strerror or str(error)).lower()
    where = f"{error.filename}: " if error.filename else ""
    hint = _HINTS.get(error.errno or 0)
    return f"{where}{what}" + (f"; {hint}" if hint else "")


def _print(told: dict[str, Any]) -> None:
    for name, value in told.items():
        shown = "\n  ".join(["", *map(_row, value)]) if isinstance(value, list) else f" {value}"
        print(f"{name}:{shown}")


def _row(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {said}" for name, said in value.items())
    return str(value)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `forebay spec`."""
    parser = argparse.ArgumentParser(prog="forebay spec", description="Speculative decoding.")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_train(actions)
    command_eval.add(actions)
    command_store.add(actions)
    command_advice.add(actions)
    return parser


def _add_train(actions: Any) -> None:
    train = actions.add_parser("train", help="train a head for a target model")
    train.add_argument("--method", choices=("eagle3", "eagle", "medusa"), default="eagle3")
    train.add_argument("--target", type=Path, required=True, help="a Llama checkpoint's folder")
    train.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        help="tokenised texts, as `spec tokens` writes them",
    )
    train.add_argument("--held-out", type=Path, nargs="+", help="tokenised texts to evaluate on")
    train.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    train.add_argument("--steps", type=whole(1), default=2000, help="batches (%(default)s)")
    train.add_argument(
        "--seconds", type=number(1), help="stop after so long, whatever --steps says"
    )
    train.add_argument("--rows", type=whole(1), default=16, help="windows a batch (%(default)s)")
    train.add_argument("--length", type=whole(8), default=512, help="tokens a window (%(default)s)")
    train.add_argument(
        "--lr", type=number(1e-9, most=1), default=5e-4, help="highest learning rate (%(default)s)"
    )
    train.add_argument(
        "--unrolls", type=whole(1), default=5, help="EAGLE's steps ahead (%(default)s)"
    )
    train.add_argument("--heads", type=whole(1), default=4, help="Medusa's heads (%(default)s)")
    train.add_argument(
        "--layers", type=whole(1), default=1, help="layers of a Medusa head (%(default)s)"
    )
    train.add_argument(
        "--tied", action="store_true", help="Medusa's heads use the target's LM head: less to learn"
    )
    train.add_argument(
        "--decay", type=number(0, most=1), default=0.0, help="weight decay (%(default)s)"
    )
    train.add_argument(
        "--draft-vocab", type=whole(1), default=32000, help="EAGLE-3's (%(default)s)"
    )
    train.add_argument("--end-token", type=whole(0), help="id put between texts")
    train.add_argument("--seed", type=whole(0), default=0)
    train.add_argument("--device", default="auto", help="cuda, cpu (auto)")
    train.add_argument("--fresh", action="store_true", help="do not go on from an earlier state")
    train.add_argument("--json", action="store_true", help="print JSON")
    train.set_defaults(run=_train)


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - --help needs none

    from forebay.kernels.speculative.corpus import (  # noqa: PLC0415 - as training has it
        Corpus,
        read_texts,
    )

    from .heads.training import Recipe, Trainer  # noqa: PLC0415 - only where it is needed
    from .llama import load_llama  # noqa: PLC0415 - only where it is needed

    on = device(arguments.device)
    kind = torch.bfloat16 if on.startswith("cuda") else torch.float32
    target = load_llama(arguments.target, dtype=kind, device=on)
    corpus = Corpus(read_texts(arguments.data), end=arguments.end_token)
    held_out = None
    if arguments.held_out:
        held_out = Corpus(read_texts(arguments.held_out), end=arguments.end_token)
    names = (each.name for each in fields(Recipe) if hasattr(arguments, each.name))
    recipe = Recipe(**{name: getattr(arguments, name) for name in names})
    trainer = Trainer(target, corpus, recipe, out=arguments.out, held_out=held_out)
    if not arguments.fresh and trainer.resume():
        _say(f"going on from step {trainer.done}")
    _say(f"{len(corpus)} tokens, a head of {sum(p.numel() for p in trainer.head.parameters())}")
    return trainer.run(say=_progress, limit_s=arguments.seconds)


def _progress(told: Progress) -> None:
    right = " ".join(f"{share:.2f}" for share in told.right)
    where = f"step {told.step}/{told.steps}"
    _say(f"{where} loss {told.loss:.4f} right {right} ({told.seconds:.1f} s)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
