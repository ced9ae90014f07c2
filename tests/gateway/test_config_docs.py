"""docs/configuration.md holds a reference made from the sections; run this file to renew it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from pydantic import BeforeValidator

from forebay.gateway.config import base, experiments, load, scheduling, tenancy
from forebay.gateway.config.sections import Config, Section

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.fields import FieldInfo

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
START, END = "<!-- reference -->\n", "<!-- /reference -->"


def reference() -> str:
    """A table for each section, in the file's order."""
    tables: list[str] = []
    for path, section in _sections("", Config):
        rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
        rows += [_row(name, field) for name, field in section.model_fields.items()]
        title = f"### `{path}`" if path else "### The file"
        tables.append("\n".join([title, "", str(section.__doc__), "", *rows, ""]))
    return "\n".join(tables) + "\n"


def _sections(path: str, section: type[Section]) -> list[tuple[str, type[Section]]]:
    found = [(path, section)]
    for name, field in section.model_fields.items():
        inner = _inner(field.annotation)
        if inner is not None:
            origin = get_origin(field.annotation)
            many = "[]" if origin is tuple else ".NAME" if origin is dict else ""
            found += _sections(f"{path}.{name}{many}".lstrip("."), inner)
    return found


def _inner(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for each in get_args(annotation) if (found := _inner(each))), None)


def _row(name: str, field: FieldInfo) -> str:
    inner = _inner(field.annotation)
    meaning = field.description or (str(inner.__doc__).rstrip(".") if inner else "")
    assert meaning, f"{name} has no description"
    meaning = meaning.replace("|", "\\|")
    return f"| `{name}` | {_kind(field)} | {_default(field)} | {meaning} |"


def _kind(field: FieldInfo) -> str:
    inner = _inner(field.annotation)
    if inner is not None:
        origin = get_origin(field.annotation)
        return "list" if origin is tuple else "mapping of names" if origin is dict else "mapping"
    unit = _unit(field)
    if unit and get_origin(field.annotation) is tuple:
        return f"list of {unit}s"
    if unit:
        return f"mapping of names to {unit}s" if get_origin(field.annotation) is dict else unit
    annotation = field.annotation
    choices = [each for each in get_args(annotation) if each is not type(None)]
    if isinstance(annotation, type) and not choices:
        names = {"int": "number", "float": "number", "bool": "true or false"}
        return names.get(annotation.__name__, "text")
    if get_origin(annotation) is dict:
        number = getattr(get_args(annotation)[1], "__origin__", None) is float
        return "mapping of names to numbers" if number else "list"
    if get_origin(annotation) is tuple and get_origin(choices[0]) is Literal:
        return f"list of {_choices(get_args(choices[0]))}"
    if get_origin(annotation) is tuple or any(get_origin(c) is tuple for c in choices):
        return "list"
    if choices in ([int], [float]):
        return "number"
    return _choices(choices) if isinstance(choices[0], str | int) else "text"


def _choices(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _unit(field: FieldInfo) -> str:
    names: dict[object, str] = {
        base.read_duration: "duration",
        base.parse_bytes: "size",
        base.parse_count: "count",
        base.parse_share: "share",
        scheduling.read_limit: "number or `auto`",
        tenancy.read_moment: "date or time",
        tenancy.read_reserve: "share or `true`",
        experiments.read_margin: "margin",
    }
    inside = [m for a in get_args(field.annotation) for m in getattr(a, "__metadata__", ())]
    for each in (*field.metadata, *inside):
        if isinstance(each, BeforeValidator) and each.func in names:
            return names[each.func]
    return ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, Section):
        return "see below"
    written: Any = _written(value, _unit(field))
    if isinstance(written, list):
        written = ", ".join(cast("list[str]", written))
    return f"`{written}`"


def _written(value: Any, unit: str) -> Any:
    if isinstance(value, tuple) and unit:
        return [_written_one(each, unit) for each in cast("tuple[Any, ...]", value)]
    return _written_one(value, unit)


def _written_one(value: Any, unit: str) -> str:
    match unit:
        case "duration":
            for suffix, seconds in (("h", 3600), ("m", 60)):
                if value >= 5 * seconds and value % seconds == 0:
                    return f"{value / seconds:g}{suffix}"
            return f"{value:g}s"
        case "size":
            return f"{value >> 20}MiB" if value >= 1 << 20 else f"{value >> 10}KiB"
        case "share":
            return f"{value:.0%}"
        case _ if isinstance(value, tuple):
            return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType] - any
        case _ if isinstance(value, float):
            return f"{value:g}"
        case _:
            return str(value).lower() if isinstance(value, bool) else str(value)


def test_the_page_holds_the_reference_that_the_sections_say():
    page = PAGE.read_text()
    assert page.partition(START)[2].partition(END)[0] == reference(), (
        "run 'python tests/gateway/test_config_docs.py'"
    )


def test_the_defaults_on_the_page_are_the_sections_own():
    for path, section in _sections("", Config):
        for name, field in section.model_fields.items():
            unit = _unit(field)
            if unit and not field.is_required() and field.default not in (None, {}):
                written = {name: _written(field.default, unit)}
                needed = {
                    n: "10%" if _unit(f) == "share" else _sample(f)
                    for n, f in section.model_fields.items()
                    if f.is_required()
                }
                read = section.model_validate({**needed, **written})
                assert getattr(read, name) == field.default, f"{path}.{name}"


def _sample(field: FieldInfo) -> object:
    return {"a": ["x"], "b": ["y"]} if get_origin(field.annotation) is dict else "x"


def test_the_examples_on_the_page_are_right():
    page = PAGE.read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert blocks
    env = dict.fromkeys(re.findall(r"\$\{(\w+)\}", page), "secret")
    for block in blocks:
        load.read(block, env)


def test_later_keys_are_named_on_the_page():
    page = PAGE.read_text()
    for _, section in _sections("", Config):
        for key in section.later:
            assert f"`{key}`" in page, key


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + reference() + END + rest.partition(END)[2])
