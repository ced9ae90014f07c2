"""Make a JSON value that validates against an ordinary JSON schema."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from random import Random

Schema = dict[str, Any]

_DEEP = 6
_DEEPEST = 40
_PARTS_MOST = 20_000
_LONGEST = 20_000
_STRING: Schema = {"type": "string"}
_FORMATS = {
    "date": "2024-05-17",
    "date-time": "2024-05-17T08:30:00Z",
    "time": "08:30:00Z",
    "duration": "PT30M",
    "email": "keeper@example.com",
    "hostname": "basin.example.com",
    "ipv4": "192.0.2.7",
    "ipv6": "2001:db8::7",
    "uri": "https://example.com/basin",
    "url": "https://example.com/basin",
    "uuid": "6f9c1b1e-4f1a-4f0e-9a55-0c3c7b1d2e3f",
}
_TEXTS = ("quiet basin", "level gate", "steady turbine", "open channel", "silver river")


def fill(schema: object, rng: Random) -> Any:
    """Make a value for `schema`. Patterns, `not` and conditions are not looked at.

    Raises ValueError for a schema that cannot be read, or whose values are too large.
    """
    root = cast("Schema", schema) if isinstance(schema, dict) else {}
    try:
        return _Filler(root, rng).fill(root, 0)
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"the JSON schema cannot be read: {type(error).__name__}") from None


class _Filler:
    """Fills the parts of one schema, up to a number of them: a schema may refer to itself."""

    def __init__(self, root: Schema, rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._left = _PARTS_MOST

    def fill(self, schema: object, depth: int) -> Any:
        self._spend(depth)
        if not isinstance(schema, dict):
            return {}
        found = self._resolve(cast("Schema", schema), depth)
        if "const" in found:
            return found["const"]
        if found.get("enum"):
            return self._rng.choice(found["enum"])
        for word in ("anyOf", "oneOf"):
            if found.get(word):
                return self.fill(_alternative(found[word], depth), depth + 1)
        return self._fill_type(found, depth)

    def _spend(self, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError("the JSON schema has no value of a sensible size")

    def _resolve(self, schema: Schema, depth: int) -> Schema:
        """Follow `$ref` and merge `allOf`."""
        self._spend(depth)
        for _ in range(16):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                break
            rest = {name: value for name, value in schema.items() if name != "$ref"}
            schema = {**_look_up(reference, self._root), **rest}
        merged: Schema = {name: value for name, value in schema.items() if name != "allOf"}
        for part in schema.get("allOf") or ():
            _merge(merged, self._resolve(part, depth + 1))
        return merged

    def _fill_type(self, schema: Schema, depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = cast("list[str]", kind)
            kind = "null" if depth >= _DEEP and "null" in kinds else kinds[0]
        if kind is None:
            kind = "array" if "items" in schema else "object"
        match kind:
            case "object":
                return self._fill_object(schema, depth)
            case "array":
                return self._fill_array(schema, depth)
            case "string":
                return _fill_string(schema, self._rng)
            case "integer" | "number":
                return _fill_number(schema, self._rng, whole=kind == "integer")
            case "boolean":
                return self._rng.random() < 0.5
            case _:
                return None

    def _fill_object(self, schema: Schema, depth: int) -> Schema:
        properties: Schema = schema.get("properties") or {}
        required: list[str] = schema.get("required") or []
        value = {
            name: self.fill(part, depth + 1)
            for name, part in properties.items()
            if depth < _DEEP or name in required
        }
        extra: object = schema.get("additionalProperties")
        for name in required:
            if name not in value:
                value[name] = self.fill(extra, depth + 1)
        return value

    def _fill_array(self, schema: Schema, depth: int) -> list[Any]:
        leading = [self.fill(part, depth + 1) for part in schema.get("prefixItems") or ()]
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(least, 3)))
        wanted = least if depth >= _DEEP else max(least, min(most, self._rng.randint(1, 3)))
        items: object = schema.get("items", _STRING)
        if schema.get("prefixItems") and "items" not in schema:
            wanted = least
        values = list(leading[: max(most, least)])
        tries = 0
        while len(values) < wanted:
            value = self.fill(items, depth + 1)
            tries += 1
            if not schema.get("uniqueItems") or value not in values or tries > 100:
                values.append(value)
        return values


def _merge(into: Schema, part: Schema) -> None:
    for name, value in part.items():
        if name == "properties":
            into[name] = {**into.get(name, {}), **value}
        elif name == "required":
            into[name] = [*into.get(name, []), *value]
        else:
            into[name] = value


def _look_up(reference: str, root: Schema) -> Schema:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            name = step.replace("~1", "/").replace("~0", "~")
            found = cast("Schema", found).get(name) if isinstance(found, dict) else None
    return cast("Schema", found) if isinstance(found, dict) else {}


def _alternative(choices: list[Any], depth: int) -> Any:
    """Take the first; deep down, one that ends: null where it is offered."""
    if depth >= _DEEP:
        for choice in choices:
            if isinstance(choice, dict) and cast("Schema", choice).get("type") == "null":
                return cast("Schema", choice)
    return choices[0]


def _fill_string(schema: Schema, rng: Random) -> str:
    text = _FORMATS.get(str(schema.get("format"))) or rng.choice(_TEXTS)
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    if least > _LONGEST:
        raise ValueError("the JSON schema has no value of a sensible size")
    while len(text) < least:
        text += f" {rng.choice(_TEXTS)}"
    if most is not None:
        text = text[: int(most)]
    elif least and "format" not in schema:
        text = text[: max(least, 12)]
    return text


def _fill_number(schema: Schema, rng: Random, *, whole: bool) -> float:
    step = schema.get("multipleOf") or (1 if whole else 0.5)
    low, high = _bounds(schema, step)
    if low is None and high is None:
        low, high = 1, 100
    elif low is None:
        low = cast("float", high) - 100 * step
    elif high is None:
        high = low + 100 * step
    first, last = ceil(low / step), floor(cast("float", high) / step)
    if last < first:
        value: float = (low + cast("float", high)) / 2
        return int(value) if whole else value
    value = rng.randint(first, last) * step
    return int(value) if whole else value


def _bounds(schema: Schema, step: float) -> tuple[float | None, float | None]:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    # Half a step inside an open bound: the next multiple is then within it.
    if isinstance(above, int | float) and not isinstance(above, bool):
        low = above + step / 2 if low is None else max(low, above + step / 2)
    if isinstance(under, int | float) and not isinstance(under, bool):
        high = under - step / 2 if high is None else min(high, under - step / 2)
    return low, high
