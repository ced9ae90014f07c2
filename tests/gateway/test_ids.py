"""Our own request ids, and whose may be repeated."""

from __future__ import annotations

import re

import pytest

from forebay.gateway.ids import Ids, callers_id


def test_ids_are_32_hexadecimal_digits_and_differ():
    ids = Ids()
    made = [ids.next() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)


@pytest.mark.parametrize("value", [b"a", b"A-z_0.9", b"x" * 64])
def test_a_well_formed_id_of_the_caller_is_kept(value: bytes):
    assert callers_id(value) == value.decode()


@pytest.mark.parametrize(
    "value", [None, b"", b"x" * 65, b"a b", b"a\n", b"\xc3\xa9", b"a/b", b"a,b"]
)
def test_any_other_id_is_not(value: bytes | None):
    assert callers_id(value) is None
