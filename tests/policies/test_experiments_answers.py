"""How alike two answers are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policies.experiments.answers import (
    Likeness,
    Said,
    ShadowTally,
    compare,
    edit_distance,
    is_json,
    is_repeated,
    pieces_of,
)


def plain_distance(one: list[str], two: list[str]) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        before, row = row, [i]
        for j, b in enumerate(two, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


@given(
    st.lists(st.sampled_from("abc"), max_size=80), st.lists(st.sampled_from("abcd"), max_size=80)
)
def test_the_distance_is_that_of_the_plain_table(one: list[str], two: list[str]):
    assert edit_distance(one, two) == plain_distance(one, two)


@given(st.text(max_size=200))
def test_pieces_put_together_are_the_text(text: str):
    assert "".join(pieces_of(text)) == text


def test_equal_answers_are_equal():
    said = Said("The answer is 42.", "stop")
    assert compare(said, said) == Likeness(True, 5, 0.0, True)


def test_the_first_piece_that_differs_is_told():
    one, two = Said("The answer is 42.", "stop"), Said("The answer is 43, or so", "length")
    assert compare(one, two) == Likeness(False, 3, 4 / 7, False)


def test_log_probabilities_are_compared_up_to_where_texts_part():
    one = Said("a b c", "stop", (-0.1, -0.2, -5.0))
    two = Said("a b d", "stop", (-0.2, -0.2, -0.1))
    assert compare(one, two).logprob_gap == pytest.approx(0.05)


def test_an_answer_against_nothing_has_nothing_in_common():
    found = compare(Said("some words here"), Said(""))
    assert (found.exact, found.first_difference, found.distance) == (False, 0, 1.0)


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("!" * 40, True),
        ("no no no " * 12, True),
        (" the" * 30, True),
        ("ab ab " * 20, True),
        ("yes, " * 20, True),
        ("a plain answer that says something new with each of its many words " * 3, False),
        ("", False),
        ("!!!", False),
    ],
)
def test_one_piece_over_and_over_is_no_answer(text: str, repeated: bool):  # noqa: FBT001 - a case
    assert is_repeated(text) == repeated


def test_json_is_told_from_what_only_looks_like_it():
    assert [is_json(t) for t in ('{"a": 1}', "[]", '{"a": ', "```json\n{}\n```")] == [
        *(True, True, False, False)
    ]
    assert not is_json("[" * 3000)  # an engine in a loop says such a thing


def test_tallies_add_up():
    one, two = ShadowTally(), ShadowTally()
    one.add(Likeness(True, 5, 0.0, True))
    two.add(Likeness(False, 3, 0.5, False, 0.2))
    two.add(Likeness(False, 2, 0.5, True))
    one.merge(two)
    told = (one.copies, one.exact, one.same_finish, one.distance, one.first_differences)
    assert told == (3, 1, 2, 1.0, {2: 2})
