"""What callers are told of a failure."""

from __future__ import annotations

import pytest

from forebay.gateway.failing import retry_after
from forebay.policies.contracts import Overloaded


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.4, b"2"), (60.01, b"61")]
)
def test_nobody_is_called_back_too_early(seconds: float, told: bytes):
    assert retry_after(Overloaded("full", retry_after=seconds)) == [(b"retry-after", told)]


def test_an_error_that_waiting_does_not_mend_has_no_retry_after():
    assert retry_after(Overloaded("full")) == []
