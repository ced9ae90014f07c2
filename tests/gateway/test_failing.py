"""What callers are told of a failure."""

from __future__ import annotations

import pytest

from forebay.gateway.failing import engines_retry_after, retry_after
from forebay.policies.contracts import Overloaded


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.4, b"2"), (60.01, b"61")]
)
def test_nobody_is_called_back_too_early(seconds: float, told: bytes):
    assert retry_after(Overloaded("full", retry_after=seconds)) == [(b"retry-after", told)]


def test_an_error_that_waiting_does_not_mend_has_no_retry_after():
    assert retry_after(Overloaded("full")) == []


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (b"7", 7.0),
        (b"0", 0.0),
        (b"999999", 3600.0),
        (b"-1", None),
        (b"soon", None),
        (b"Sun, 29 Nov 2026 22:00:00 GMT", None),
    ],
)
def test_an_engines_own_time_is_taken_where_it_is_one(told: bytes, wanted: float | None):
    assert engines_retry_after([(b"server", b"x"), (b"retry-after", told)]) == wanted
    assert engines_retry_after([]) is None
