"""Says in our words what pydantic found: what is wrong, and the nearest valid name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from .sections import Config, Section
from .suggest import did_you_mean
from .units import Substituted, parse_share, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from .errors import Place

_TOO_MUCH = ("less_than", "less_than_equal")
_WANTED = {
    "bool": "true or false",
    "dict": "a mapping",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "a mapping",
    "string": "a text",
    "tuple": "a list",
}


def explain(error: ErrorDetails) -> tuple[Place, str]:
    """Return where an error is and what to do. Never repeats a value from the environment."""
    place = tuple(part for part in error["loc"] if part != "[key]")
    return place, _message(error, place)


def _message(error: ErrorDetails, place: Place) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(place)
    if kind == "literal_error":
        return _no_choice(error["input"], place)
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return "must be 1 to 63 letters, digits, '.', '_' or '-', the first a letter or a digit"
    if kind == "too_short":
        return "needs at least one entry"
    return _plain(kind, error, place)


def _plain(kind: str, error: ErrorDetails, place: Place) -> str:
    about, _, fault = kind.partition("_")
    wanted = _WANTED.get(about) if fault in {"type", "parsing", "from_float"} else None
    if wanted == "a text" and isinstance(error["input"], int | float):
        # Not repeated: what is meant as a text may be a key.
        return "must be a text; put it in quotes"
    if wanted:
        return f"must be {wanted}"
    message = re.sub(r"^(Input|Value|String) should ", "must ", error["msg"])
    hint = "; ten percent is 10% or 0.1" if kind in _TOO_MUCH and _is_share(place) else ""
    return message[:1].lower() + message[1:] + hint


def _is_share(place: Place) -> bool:
    section = _section_at(place[:-1])
    field = None if section is None else section.model_fields.get(str(place[-1]))
    return field is not None and any(
        getattr(each, "func", None) is parse_share for each in field.metadata
    )


def _unknown_key(place: Place) -> str:
    section, key = _section_at(place[:-1]), str(place[-1])
    if section is None:
        return "is no known key"
    if key in section.later:
        return "is not in this version"
    return f"is no known key{did_you_mean(key, section.model_fields)}"


def _no_choice(value: object, place: Place) -> str:
    listed = isinstance(place[-1], int)
    section, key = _section_at(place[:-1]), str(place[-2] if listed else place[-1])
    field = None if section is None else section.model_fields.get(key)
    if section is None or field is None:
        return "is none of the known values"
    kind = get_args(field.annotation)[0] if listed else field.annotation
    choices = [str(choice) for choice in _choices(kind)]
    if isinstance(value, str) and not isinstance(value, Substituted) and value in choices:
        return f"must be {value}, without quotes"
    if str(value) in section.later_values.get(key, ()):
        return f"{shown(value)} is not in this version; use {' or '.join(choices)}"
    hint = "" if isinstance(value, Substituted) else did_you_mean(str(value), choices)
    return f"{shown(value)} is not one of {', '.join(choices)}{hint}"


def _choices(annotation: Any) -> list[object]:
    """Return the values of a Literal, alone or beside None."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for each in get_args(annotation) for choice in _choices(each)]


def _section_at(place: Place) -> type[Section] | None:
    section: type[Section] | None = Config
    named = False
    for part in place:
        if isinstance(part, int) or section is None:
            continue
        if named:  # a name that the file's writer chose, not a key
            named = False
            continue
        known = section.model_fields.get(part)
        if known is not None and part == place[-1] and _section_in(known.annotation) is None:
            return section
        named = known is not None and get_origin(known.annotation) is dict
        section = None if known is None else _section_in(known.annotation)
    return section


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds, alone, in a tuple or beside None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for each in get_args(annotation):
        found = _section_in(each)
        if found is not None:
            return found
    return None
