"""The names that the configuration uses for policies, and what makes each.

Ours are the literal tables below. Others come from installed packages through the entry-point group
`forebay.policies`, under the name `KIND.NAME` (`score.cheapest`), and are imported when they are
first asked for and not before. A factory is called with no arguments, or with its settings as
keywords, and returns a policy.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from .contracts import ConfigError
from .filter_capability import Capability
from .filter_room import Room
from .filter_speculation import Speculation
from .filter_usable import Usable
from .ordering_aged import Aged
from .ordering_bounded import Bounded
from .ordering_edf import Edf
from .ordering_fair import Fair, Ml
from .ordering_fcfs import Fcfs
from .ordering_hrrn import Hrrn
from .ordering_sjf import Sjf
from .pick import Seeded
from .score_hash_ring import HashRing
from .score_least_tokens import LeastTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.metadata import EntryPoint

    from .contracts import Filter, Ordering, Pick, Score

GROUP = "forebay.policies"

ORDERINGS: dict[str, Callable[..., Ordering]] = {
    "aged": Aged,
    "bounded": Bounded,
    "edf": Edf,
    "fair": Fair,
    "fcfs": Fcfs,
    "hrrn": Hrrn,
    "ml": Ml,
    "sjf": Sjf,
}
FILTERS: dict[str, Callable[..., Filter]] = {
    "usable": Usable,
    "capability": Capability,
    "room": Room,
    "speculation": Speculation,
}
SCORES: dict[str, Callable[..., Score]] = {"hash_ring": HashRing, "least_tokens": LeastTokens}
PICKS: dict[str, Callable[..., Pick]] = {"seeded": Seeded}

KINDS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "ordering": ORDERINGS,
    "filter": FILTERS,
    "score": SCORES,
    "pick": PICKS,
}


def names(kind: str) -> list[str]:
    """List the known policies of a kind, ours and installed ones, sorted; imports none."""
    return sorted({*KINDS[kind], *_installed(kind)})


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return what makes the policy of that kind and name.

    Raises ConfigError when there is none, when two packages offer it, or when it cannot be loaded.
    """
    ours = KINDS[kind].get(name)
    if ours is not None:
        return ours
    found = _installed(kind).get(name)
    if not found:
        raise ConfigError(f"no {kind} is named {name!r}; {_suggest(name, names(kind))}")
    if len(found) > 1:
        raise ConfigError(f"{kind} {name!r} comes from {_sources(found)}; uninstall all but one")
    return _load(found[0])


def _installed(kind: str) -> dict[str, list[EntryPoint]]:
    prefix = f"{kind}."
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name.startswith(prefix):
            found.setdefault(point.name.removeprefix(prefix), []).append(point)
    return found


def _load(point: EntryPoint) -> Callable[..., Any]:
    try:
        loaded = point.load()
    except Exception as error:  # a foreign module may raise anything when it is imported
        raise ConfigError(
            f"{point.name!r} of {_sources([point])} cannot be loaded from {point.value!r}:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise ConfigError(
            f"{point.name!r} of {_sources([point])} is {loaded!r}, and has to be a factory"
        )
    return loaded


def _sources(points: Iterable[EntryPoint]) -> str:
    return " and ".join(
        sorted("an unknown package" if p.dist is None else p.dist.name for p in points)
    )


def _suggest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
