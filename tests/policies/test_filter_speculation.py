"""Speculative endpoints for those who gain by it, plain ones for others, nobody left waiting."""

from __future__ import annotations

import pytest
from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Request
from forebay.policies.filter_speculation import Speculation


def view(name: str, in_flight: int = 0, *, speculates: bool | None) -> EndpointView:
    made = EndpointView(name=name, engine="vllm", limit=64)
    made.speculates, made.in_flight = speculates, in_flight
    return made


def request(*, speculates: bool) -> Request:
    return a_request(speculates=speculates)


FAST, BUSY = view("fast", speculates=True), view("busy", 32, speculates=True)
LEFT, PLAIN = view("left", speculates=False), view("plain", speculates=None)


@pytest.mark.parametrize(
    ("pays", "given", "kept"),
    [
        (True, [FAST, BUSY, LEFT, PLAIN], [FAST]),
        (False, [FAST, BUSY, LEFT, PLAIN], [PLAIN]),
        (True, [BUSY, LEFT, PLAIN], [PLAIN]),
        (True, [BUSY, LEFT], [BUSY, LEFT]),
        (False, [FAST, LEFT], [FAST, LEFT]),
        (True, [], []),
    ],
    ids=["pays", "does not", "batch full or left alone", "no plain one", "only fast", "none"],
)
def test_the_kind_that_pays_is_kept_while_any_of_it_is_left(
    *, pays: bool, given: list[EndpointView], kept: list[EndpointView]
):
    assert Speculation(max_batch=32)(request(speculates=pays), given, 0.0) == kept
