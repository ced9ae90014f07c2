# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: T201
# (printing is what a command does)
"""`forebay spec eval`: a head's acceptance by position, on the target's own answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import device, number, whole

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["add"]


def add(actions: Any) -> None:
    """Declare the action."""
    found = actions.add_parser("eval", help="measure a head's acceptance by position")
    found.add_argument("--target", type=Path, required=True, help="a Llama checkpoint's folder")
    found.add_argument("--head", type=Path, required=True, help="what `spec train` wrote")
    found.add_argument("--method", choices=("eagle3", "eagle", "medusa"), default="eagle3")
    found.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        help="tokenised texts, as `spec tokens` writes them",
    )
    found.add_argument("--prompts", type=whole(1), default=32, help="how many (%(default)s)")
    found.add_argument("--prompt-tokens", type=whole(1), default=256, help="of each (%(default)s)")
    found.add_argument("--tokens", type=whole(1), default=128, help="of each answer (%(default)s)")
    found.add_argument("--depth", type=whole(1), default=4, help="tokens of a draft (%(default)s)")
    found.add_argument("--width", type=whole(1), default=1, help="above 1: a tree (%(default)s)")
    found.add_argument("--temperature", type=number(0), default=0.0)
    found.add_argument("--device", default="auto", help="cuda, cpu (auto)")
    found.add_argument("--json", action="store_true", help="print JSON")
    found.set_defaults(run=_eval)


def _eval(arguments: Namespace) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - --help needs none

    from .corpus import read_texts  # noqa: PLC0415 - only where it is needed
    from .heads.training import load_head  # noqa: PLC0415 - only where it is needed
    from .llama import load_llama  # noqa: PLC0415 - only where it is needed
    from .reference.engine import Engine, Plain, Request  # noqa: PLC0415 - only where it is needed
    from .reference.laws import Sampling  # noqa: PLC0415 - only where it is needed

    on = device(arguments.device)
    kind = torch.bfloat16 if on.startswith("cuda") else torch.float32
    target = load_llama(arguments.target, dtype=kind, device=on)
    head = load_head(arguments.method, arguments.head, dtype=kind, device=on)
    method = _method(arguments, head.requires_grad_(requires_grad=False), target)
    plain, engine, same, asked = Engine(target, Plain()), Engine(target, method), 0, 0
    for text in read_texts(arguments.data):
        prompt = tuple(text.tokens[: text.answer_from or arguments.prompt_tokens])
        if len(prompt) < 2:
            continue
        how = Sampling(temperature=arguments.temperature, seed=asked)
        request = Request(prompt, arguments.tokens, how)
        same += engine.run([request]) == plain.run([request])
        asked += 1
        print(f"{asked}/{arguments.prompts}", file=sys.stderr)
        if asked >= arguments.prompts:
            break
    if not asked:
        raise ValueError("the data holds no prompt of at least 2 tokens")
    counts = engine.counts
    drafts = max(counts.drafts, 1)
    return {
        "accepted_by_position": [round(n / drafts, 4) for n in counts.by_depth],
        "accepted_a_draft": round(counts.accepted / drafts, 4),
        "tokens_a_step": round(counts.emitted / max(counts.runs, 1), 4),
        "same_as_plain": same,
        "prompts": asked,
    }


def _method(arguments: Namespace, head: Any, target: Any) -> Any:
    from .reference.eagle import Eagle  # noqa: PLC0415 - only where it is needed
    from .reference.medusa import Medusa  # noqa: PLC0415 - only where it is needed

    if arguments.method != "medusa":
        return Eagle(head, target, depth=arguments.depth, width=arguments.width)
    depths = min(arguments.depth, len(head.blocks))
    paths = None if arguments.width > 1 else [(0,) * n for n in range(1, depths + 1)]
    return Medusa(head, paths=paths)
