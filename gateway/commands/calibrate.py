"""`forebay calibrate`: measures a real endpoint, so that the simulator can stand in for it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import numbers, positive

if TYPE_CHECKING:
    from argparse import Namespace

    from .arguments import Commands
    from .calibrate_runs import Measured


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "calibrate",
        help="measure an endpoint, for the simulator",
        description="Send short runs to an OpenAI-compatible endpoint, which should be idle, and "
        "write a profile that `forebay replay --engine-profile FILE` takes.",
    )
    option = parser.add_argument
    option("url", metavar="URL", help="the endpoint, as http://127.0.0.1:8000")
    option("--output", type=Path, metavar="FILE", help="the file to write (NAME.json)")
    option("--name", default="measured", help="the profile's name (%(default)s)")
    option("--model", help="the model's name (the endpoint's first)")
    option("--key-env", metavar="NAME", help="environment variable that has the endpoint's key")
    option(
        "--lengths", type=numbers, default=[32, 256, 1024, 2048], help="prompt lengths in tokens"
    )
    option("--concurrency", type=numbers, default=[1, 4, 16, 32], help="answers at once")
    option("--repeats", type=positive, default=5, help="runs of each prompt length (%(default)s)")
    option("--max-num-seqs", type=positive, default=256, help="the engine's own (%(default)s)")
    option("--max-num-batched-tokens", type=positive, default=8192, help="likewise (%(default)s)")
    option("--json", action="store_true", help="print the profile as JSON")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Measure, fit and write."""
    import asyncio
    import json
    from dataclasses import asdict, replace

    from forebay.scheduler.engine_fit import fit

    from .profile_file import write_profile

    if not re.match(r"https?://[^\s/]", arguments.url):
        print(
            f"forebay calibrate: '{arguments.url}' is no http address; write http://HOST:PORT",
            file=sys.stderr,
        )
        return 2
    if arguments.key_env is not None and not os.environ.get(arguments.key_env):
        print(f"forebay calibrate: --key-env {arguments.key_env}: is not set", file=sys.stderr)
        return 2
    measured = asyncio.run(_measure(arguments))
    limits = replace(
        measured.limits,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
    )
    try:
        profile = fit(arguments.name, measured.prefills, measured.decodes, limits)
    except ValueError as error:
        print(f"forebay calibrate: {error}", file=sys.stderr)
        return 2
    told = told_of(measured)
    path = arguments.output or Path(f"{arguments.name}.json")
    write_profile(path, profile, told)
    if arguments.json:
        print(json.dumps({"profile": asdict(profile), "measured": told, "file": str(path)}))
    else:
        print(f"{path}: {arguments.name}")
        for key, value in asdict(profile).items():
            print(f"  {key}: {value:.3g}" if isinstance(value, float) else f"  {key}: {value}")
    return 0


def told_of(measured: Measured) -> dict[str, object]:
    """Return what was measured, for the file."""
    return {
        "model": measured.model,
        "prefills": [each._asdict() for each in measured.prefills],
        "decodes": [each._asdict() for each in measured.decodes],
    }


async def _measure(arguments: Namespace) -> Measured:
    import httpx

    from .calibrate_runs import Endpoint, measure

    key = os.environ.get(arguments.key_env, "") if arguments.key_env else ""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=arguments.url, headers=headers, timeout=120.0, limits=limits, trust_env=False
    ) as http:
        return await measure(
            Endpoint(http, model=arguments.model),
            lengths=arguments.lengths,
            concurrencies=arguments.concurrency,
            repeats=arguments.repeats,
            progress=lambda what: print(what, file=sys.stderr, flush=True),
        )
