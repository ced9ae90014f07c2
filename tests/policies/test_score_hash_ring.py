"""Sessions kept by hashing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Request
from forebay.policies.score_hash_ring import HashRing

if TYPE_CHECKING:
    from collections.abc import Sequence


def views(*names: str) -> list[EndpointView]:
    return [EndpointView(name=name, engine="sim", limit=8) for name in names]


def request(**fields: Any) -> Request:
    return a_request(**fields)


def best(asked: Request, endpoints: Sequence[EndpointView]) -> str:
    scores = HashRing()(asked, endpoints, 0.0)
    assert all(0 <= score <= 1 for score in scores)
    return endpoints[scores.index(max(scores))].name


def test_a_session_stays_and_sessions_spread_evenly():
    ring = views("a", "b", "c", "d")
    homes = Counter(best(request(session=f"s{n}"), ring) for n in range(2000))
    assert best(request(session="s"), ring) == best(request(session="s"), list(reversed(ring)))
    assert all(400 < count < 600 for count in homes.values())


def test_an_endpoint_that_leaves_takes_only_its_own_sessions_along():
    ring, left = views("a", "b", "c", "d"), views("a", "b", "d")
    for n in range(200):
        home = best(request(session=f"s{n}"), ring)
        assert home == "c" or best(request(session=f"s{n}"), left) == home


def test_tenants_sessions_of_one_name_are_not_one():
    ring = views(*"abcdefgh")
    homes = {best(request(session="1", tenant=f"t{n}"), ring) for n in range(50)}
    assert len(homes) > 4


def test_without_a_session_the_first_block_decides_and_without_both_the_load():
    ring = views("a", "b")
    homes = {best(request(blocks=(n << 32,)), ring) for n in range(1, 50)}
    assert homes == {"a", "b"}
    ring[0].in_flight_tokens = 500
    assert best(request(), ring) == "b"
