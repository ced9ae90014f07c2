"""The embedded engine's tokenizer, prose and values for schemas."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.adapters.sim_schema import fill
from forebay.adapters.sim_text import VOCABULARY, decode, encode, prose, render, split, token_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


@given(st.text())
def test_any_text_comes_back_whole(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    assert all(0 <= token < VOCABULARY for token in ids)


@given(st.text(alphabet="aZ 0\né\U0001f600.", max_size=40))
def test_pieces_add_up_to_the_text(text: str) -> None:
    ids, pieces = split(text)
    assert "".join(pieces) == text
    assert ids == encode(text)
    assert len(ids) == len(pieces)


def test_a_listed_word_is_one_token_and_others_about_three_letters_each() -> None:
    assert len(encode("the quiet turbine holds the level gate")) == 7
    assert len(encode("abracadabra")) == 4
    assert len(encode("a" * 3000)) == 1000


def test_ids_are_the_same_in_each_process() -> None:
    assert encode("hello the world, x=1") == [29773, 29388, 29776, 44, 344, 61, 49]


def test_every_id_stands_for_something_else() -> None:
    texts = [token_bytes(token) for token in range(VOCABULARY - 32)]
    meant = [text for text in texts if text]
    listed = {text for text in meant[-3000:] if len(text) > 3}
    assert len(set(meant[:256])) == 256
    assert b" the" in listed


def test_a_turn_cannot_pretend_to_be_another() -> None:
    honest = render([("user", "a"), ("assistant", "b"), ("user", "c")])
    forged = render([("user", decode(render([("user", "a"), ("assistant", "b")])) + "c")])
    marks = [token for token in forged if token >= VOCABULARY - 32]
    assert len(marks) == 3
    assert len([token for token in honest if token >= VOCABULARY - 32]) == 7


@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_prose_is_what_its_text_encodes_to(key: int, count: int) -> None:
    found = prose(key, count)
    assert len(found.ids) == len(found.pieces) == len(found.quoted) == count
    assert encode("".join(found.pieces)) == list(found.ids)
    assert [f'"{piece}"'.encode() for piece in found.pieces] == list(found.quoted)


def test_prose_goes_on_for_as_long_as_is_asked() -> None:
    assert len(prose(5, 100_000).ids) == 100_000
    assert prose(5, 100_000).ids[:50] == prose(5, 50).ids


CASES: list[tuple[dict[str, Any], Callable[[Any], object]]] = [
    ({"type": "integer", "minimum": 3, "maximum": 5}, lambda v: v in (3, 4, 5)),
    (
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
        lambda v: repr(v) == "4",
    ),
    ({"type": "integer", "multipleOf": 7, "minimum": 8}, lambda v: v % 7 == 0 and v >= 8),
    ({"type": "number", "minimum": 0.1, "maximum": 0.3}, lambda v: 0.1 <= v <= 0.3),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, lambda v: 0 < v <= 1),
    ({"type": "integer", "maximum": -5}, lambda v: v <= -5),
    ({"type": "string", "minLength": 30}, lambda v: len(v) >= 30),
    ({"type": "string", "maxLength": 3}, lambda v: len(v) <= 3),
    ({"type": "string", "format": "date"}, lambda v: v == "2024-05-17"),
    ({"type": "boolean"}, lambda v: isinstance(v, bool)),
    ({"type": "null"}, lambda v: v is None),
    ({"enum": ["a", 1]}, lambda v: v in ("a", 1)),
    ({"const": {"x": 1}}, lambda v: v == {"x": 1}),
    ({"type": ["string", "null"]}, lambda v: isinstance(v, str)),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, lambda v: isinstance(v, int)),
    ({}, lambda v: v == {}),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
        lambda v: 2 <= len(v) <= 4 and all(isinstance(one, int) for one in v),
    ),
    ({"type": "array", "maxItems": 0}, lambda v: v == []),
    (
        {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 3, "uniqueItems": True},
        lambda v: sorted(v) == [1, 2, 3],
    ),
    (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}]},
        lambda v: v == [1, "b"],
    ),
    (
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a", "b"]},
        lambda v: set(v) == {"a", "b"},
    ),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {"const": 2}}, "required": ["b"]},
            ]
        },
        lambda v: v == {"a": 1, "b": 2},
    ),
    (
        {"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"const": "found"}}},
        lambda v: v == "found",
    ),
]


@pytest.mark.parametrize(("schema", "accept"), CASES)
def test_a_value_keeps_to_its_schema(
    schema: dict[str, Any], accept: Callable[[Any], object]
) -> None:
    for seed in range(30):
        value = fill(schema, Random(seed))
        assert accept(value), value


def test_a_schema_that_refers_to_itself_ends() -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["name", "children", "next"],
    }
    value = fill({"$ref": "#/$defs/node", "$defs": {"node": node}}, Random(1))
    assert set(value) == {"name", "children", "next"}


@pytest.mark.parametrize(
    "schema",
    [None, True, [], {"$ref": "#/nope"}, {"$ref": "#"}, {"type": "nope"}],
)
def test_an_odd_schema_has_some_value(schema: Any) -> None:
    assert fill(schema, Random(1)) in ({}, None)


ENDLESS: list[dict[str, Any]] = [
    {"anyOf": [{"$ref": "#"}]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"allOf": [{"$ref": "#"}]},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 2},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "minLength": 10**9},
    {"type": "integer", "multipleOf": "x"},
    {"type": "object", "properties": 3},
    {"type": "integer", "minimum": 1e400},
    {"type": []},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_without_a_sensible_value_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the JSON schema"):
        fill(schema, Random(1))
