"""`forebay spec doctor` and `spec profile`: which way of speculation, and how to switch it on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import whole
from .corpus import read_texts
from .doctor import advise, decide, examine
from .profiles import ENGINES, METHODS, flags, why_not
from .store import open_store

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["add"]


def add(actions: Any) -> None:
    """Declare the actions."""
    doctor = actions.add_parser(
        "doctor",
        help="say which way of speculation to use, and why",
        description="Draft for past answers again, as if they were being written, and say which "
        "way of speculation that speaks for. `lookup` and `store` are tokens a step: 1 is no gain.",
    )
    doctor.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        help="tokenised texts, as `spec tokens` writes them",
    )
    doctor.add_argument("--store", type=Path, help="a store to try; else the older half is one")
    doctor.add_argument("--engine", choices=ENGINES, help="show its flags for the advice")
    doctor.add_argument("--head", help="a head that you have")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    profile = actions.add_parser("profile", help="flags that switch a method on")
    profile.add_argument("--engine", choices=ENGINES, help="one engine (all)")
    profile.add_argument("--method", choices=METHODS, help="one method (all)")
    profile.add_argument("--head", default="HEAD", help="a head's folder")
    profile.add_argument("--store", default="STORE", help="a store")
    profile.add_argument(
        "--tokens", type=whole(1), default=4, help="tokens of a draft (%(default)s)"
    )
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.set_defaults(run=_profile)


def _doctor(arguments: Namespace) -> dict[str, Any]:
    texts = list(read_texts(arguments.data))
    store = open_store(arguments.store)[1] if arguments.store else None
    found = examine(texts, store=store)
    said = advise(found, has_head=bool(arguments.head))
    rows = [_rounded(asdict(row)) for row in decide(found, has_head=bool(arguments.head))]
    if arguments.engine:
        rows = [{**row, **_missing(arguments.engine, row["way"])} for row in rows]
    told: dict[str, Any] = {**_rounded(asdict(found)), "ways": rows, "advice": said}
    if arguments.engine:
        method = said[0].split(":")[0].split(" ")[0]
        told["flags"] = _flags(arguments, arguments.engine, method)
    return told


def _missing(engine: str, way: str) -> dict[str, Any]:
    """Return what changes in a way's line where the engine has none of it."""
    return {} if flags(engine, way) else {"use": False, "why": why_not(engine, way)}


def _rounded(told: dict[str, Any]) -> dict[str, Any]:
    return {n: round(v, 3) if isinstance(v, float) else v for n, v in told.items()}


def _profile(arguments: Namespace) -> dict[str, Any]:
    engines = [arguments.engine] if arguments.engine else list(ENGINES)
    methods = [arguments.method] if arguments.method else list(METHODS)
    return {
        f"{engine} {method}": _flags(arguments, engine, method)
        for engine in engines
        for method in methods
    }


def _flags(arguments: Namespace, engine: str, method: str) -> str:
    if method not in METHODS:
        return "nothing to switch on"
    found = flags(
        engine,
        method,
        head=arguments.head or "HEAD",
        store=str(arguments.store or "STORE"),
        tokens=getattr(arguments, "tokens", 4),
    )
    return found or why_not(engine, method)
