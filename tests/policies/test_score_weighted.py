"""The weighted sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from tests.asking import a_request

from forebay.policies.contracts import EndpointView
from forebay.policies.score_weighted import Weighted
from forebay.prefixcache.index import Index

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash

CHAIN = cast("tuple[BlockHash, ...]", (1 << 50, 2 << 50, 3 << 50, 4 << 50))
REQUEST = a_request(prompt_tokens_estimate=256, blocks=CHAIN)


def test_hits_load_and_kv_use_are_weighed():
    index = Index()
    index.store("a", CHAIN[:2])
    views = [
        EndpointView(name="a", engine="sim", limit=4, in_flight_tokens=4000, kv_use=1.0),
        EndpointView(name="b", engine="sim", limit=4, kv_use=0.0),
        EndpointView(name="c", engine="sim", limit=4),
    ]
    scores = Weighted(index, hit=2.0, load=1.0, kv=1.0)(REQUEST, views, 0.0)
    assert scores == pytest.approx([(1.0 + 0.5 + 0.0) / 4, (0 + 1 + 1) / 4, (0 + 1 + 0.5) / 4])


def test_no_weights_and_no_blocks_are_no_error():
    views = [EndpointView(name="a", engine="sim", limit=4)]
    assert Weighted(Index(), hit=0, load=0, kv=0)(REQUEST, views, 0.0) == [0.0]
