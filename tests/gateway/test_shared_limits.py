"""How endpoints' places are divided among replicas: the script, in a real server."""

from __future__ import annotations

import itertools
import secrets
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

if TYPE_CHECKING:
    from tests.conftest import RedisServer

SCRIPT = files("forebay.gateway").joinpath("shared_limits.lua").read_text()
numbers = itertools.count()


class Replicas:
    """Asks for any replica of one endpoint with a limit."""

    def __init__(self, server: RedisServer, limit: int) -> None:
        self._client: Any = Redis.from_url(server.url)  # type: ignore[reportUnknownMemberType] - redis-py's **kwargs
        self._key = f"t{secrets.token_hex(6)}:{{limits}}"
        self.limit = limit
        self.seen = 0

    def ask(self, name: str, holding: int = 0, more: int = 0, *, believed: float = 5) -> int:
        """Return what a replica is granted."""
        arguments = (name, believed, self.limit, holding, more)
        granted, self.seen = self._client.eval(SCRIPT, 1, self._key, *arguments)
        return granted

    def rounds(self, needs: dict[str, int], times: int = 3) -> dict[str, int]:
        """Have all ask so often, with nothing in flight; return what they have in the end."""
        granted: dict[str, int] = {}
        for _ in range(times):
            granted = {name: self.ask(name, 0, need) for name, need in needs.items()}
        return granted


@pytest.fixture
def eight(redis_server: RedisServer) -> Replicas:
    return Replicas(redis_server, 8)


def test_one_alone_has_all(eight: Replicas):
    assert eight.rounds({"a": 0}) == {"a": 8}
    assert eight.rounds({"a": 100}) == {"a": 8}
    assert eight.seen == 1


@pytest.mark.parametrize(
    ("needs", "granted"),
    [
        ({"a": 0, "b": 0}, {"a": 4, "b": 4}),
        ({"a": 100, "b": 100}, {"a": 4, "b": 4}),
        ({"a": 100, "b": 0}, {"a": 7, "b": 1}),
        ({"a": 100, "b": 2}, {"a": 6, "b": 2}),
        ({"a": 3, "b": 1}, {"a": 5, "b": 3}),
        ({"a": 100, "b": 100, "c": 100}, {"a": 3, "b": 3, "c": 2}),
        ({"a": 100, "b": 0, "c": 3}, {"a": 4, "b": 1, "c": 3}),
    ],
    ids=str,
)
def test_who_needs_more_has_more(eight: Replicas, needs: dict[str, int], granted: dict[str, int]):
    assert eight.rounds(needs, 5) == granted


def test_what_one_still_uses_is_not_granted_to_another(eight: Replicas):
    assert eight.ask("a", 8) == 8
    assert eight.ask("b", 0, 10) == 1  # the sure one
    assert eight.ask("a", 8, 10) == 4
    assert eight.ask("b", 1, 10) == 1
    eight.ask("a", 5, 10)
    assert eight.ask("b", 1, 10) == 3
    eight.ask("a", 4, 10)
    assert eight.ask("b", 3, 10) == 4


def test_the_places_of_one_that_is_gone_come_back(eight: Replicas):
    eight.rounds({"a": 100, "b": 100})
    assert eight.ask("a", 4, 100, believed=-1) == 8
    assert eight.seen == 1


def test_with_fewer_places_than_replicas_each_has_one(redis_server: RedisServer):
    assert Replicas(redis_server, 1).rounds({"a": 9, "b": 9, "c": 9}) == {"a": 1, "b": 1, "c": 1}


def test_what_is_written_there_by_others_is_not_believed(redis_server: RedisServer):
    replicas = Replicas(redis_server, 8)
    for junk in ("", "x y z", "1 2", "1e99 4 4", "99999999999 5 5"):
        replicas._client.hset(replicas._key, "junk", junk)
        assert replicas.ask("a", 0, 9) == 8
        assert replicas.seen == 1


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.integers(0, 12)), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), STEPS)
def test_all_together_never_have_more_than_there_is_but_the_sure_ones(
    redis_server: RedisServer, limit: int, steps: list[Step]
):
    """Each ends some of its requests, asks, and begins as many as it may."""
    replicas = Replicas(redis_server, limit)
    holding = dict.fromkeys("abcd", 0)
    for name, want, ended in steps:
        holding[name] -= min(holding[name], ended)
        granted = replicas.ask(name, holding[name], want)
        assert 1 <= granted <= limit
        holding[name] = max(holding[name], min(granted, holding[name] + want))
        assert sum(holding.values()) <= limit + len(holding) - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 40), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 60), min_size=1))
def test_nothing_that_is_needed_is_left(
    redis_server: RedisServer, limit: int, needs: dict[str, int]
):
    granted = Replicas(redis_server, limit).rounds(needs, 6)
    assert sum(granted.values()) == limit
    idle = sum(1 for need in needs.values() if not need)
    used = sum(min(granted[name], need) for name, need in needs.items())
    assert used >= min(sum(needs.values()), limit - idle)
    hungry = [granted[name] for name, need in needs.items() if need > granted[name]]
    for name, need in needs.items():
        assert all(granted[name] <= max(need, each + 1) for each in hungry)
