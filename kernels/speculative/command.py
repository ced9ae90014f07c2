# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: T201
# (printing is what a command does)
"""`forebay spec`: train heads, evaluate them, keep stores of answers, say what to use where.

Runs in an engine's environment too, where nothing of the gateway is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import command_advice, command_eval, command_store

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
    except (ValueError, OSError) as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("forebay: stopped; the same command goes on from the last save", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(told))
    elif told:
        _print(told)
    return 0


def _print(told: dict[str, Any]) -> None:
    for name, value in told.items():
        shown = "\n  ".join(["", *map(str, value)]) if isinstance(value, list) else value
        print(f"{name}: {shown}")


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
    train.add_argument("--data", type=Path, nargs="+", required=True, help="tokenised texts")
    train.add_argument("--held-out", type=Path, nargs="+", help="tokenised texts to evaluate on")
    train.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    train.add_argument("--steps", type=int, default=2000, help="batches (%(default)s)")
    train.add_argument("--seconds", type=float, help="stop after so long, whatever --steps says")
    train.add_argument("--rows", type=int, default=16, help="windows a batch (%(default)s)")
    train.add_argument("--length", type=int, default=512, help="tokens a window (%(default)s)")
    train.add_argument("--lr", type=float, default=5e-4, help="highest learning rate (%(default)s)")
    train.add_argument("--unrolls", type=int, default=5, help="EAGLE's steps ahead (%(default)s)")
    train.add_argument("--heads", type=int, default=4, help="Medusa's heads (%(default)s)")
    train.add_argument("--draft-vocab", type=int, default=32000, help="EAGLE-3's (%(default)s)")
    train.add_argument("--end-token", type=int, help="id put between texts")
    train.add_argument("--seed", type=int, default=0)
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

    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if device.startswith("cuda") else torch.float32
    target = load_llama(arguments.target, dtype=kind, device=device)
    corpus = Corpus(read_texts(arguments.data), end=arguments.end_token)
    held_out = None
    if arguments.held_out:
        held_out = Corpus(read_texts(arguments.held_out), end=arguments.end_token)
    names = ("method", "steps", "rows", "length", "lr", "unrolls", "heads", "draft_vocab", "seed")
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
