"""What an endpoint's events say of its cache, and when they are not trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from forebay.gateway.kv_events.messages import Delta, State, bytes_of
from forebay.gateway.prefix_source import PATIENCE_S, UNTOLD, EndpointEvents
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned
from forebay.prefixcache.slots import Source

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash

CHAIN = cast("list[BlockHash]", [1 << 50, 2 << 50, 3 << 50])


class Made:
    def __init__(self, *, named: bool = True) -> None:
        self.index = Index()
        self.learned = Learned(self.index, capacity_blocks=100)
        self.events = EndpointEvents("p", "a", index=self.index, learned=self.learned, named=named)

    def seconds_pass(self) -> None:
        for second in range(3):
            self.learned.tick(float(second), ["a"])

    def delta(
        self,
        stored: list[BlockHash],
        removed: list[BlockHash] | None = None,
        *,
        cleared: bool = False,
    ) -> None:
        self.events.delta(Delta(1, cleared, bytes_of(removed or []), bytes_of(stored)))


def test_what_is_told_is_held_and_taken_back():
    made = Made()
    made.delta(CHAIN)
    assert (made.index.match(CHAIN), made.events.status) == ({"a": 3}, "live")
    made.delta([], CHAIN[2:])
    assert made.index.match(CHAIN) == {"a": 2}
    made.delta(CHAIN[:1], cleared=True)
    assert made.index.match(CHAIN) == {"a": 1}


def test_what_was_expected_goes_when_the_engine_says_so():
    made = Made()
    made.delta(CHAIN)
    made.learned.placed("a", CHAIN)
    made.delta([], CHAIN[2:])
    assert made.index.match(CHAIN) == {"a": 2}
    made.seconds_pass()
    made.delta([], cleared=True)
    assert made.index.match(CHAIN) == {}


def test_what_was_placed_just_before_a_cleared_cache_is_told_of_is_still_expected():
    made = Made()
    made.learned.placed("a", CHAIN[:1])
    made.seconds_pass()
    made.learned.placed("a", [CHAIN[2]], request="r", now=3.0)
    made.delta([], cleared=True)
    assert [made.index.holders(block) for block in CHAIN] == [(), (), ("a",)]


def test_without_tokens_events_tell_of_cleared_caches_only():
    made = Made(named=False)
    made.learned.placed("a", CHAIN)
    made.delta(CHAIN, CHAIN[:1])
    assert (made.index.match(CHAIN), made.learned.told) == ({"a": 3}, set())
    made.seconds_pass()
    made.delta([], cleared=True)
    assert made.index.match(CHAIN) == {}


def test_a_source_that_must_tell_and_does_not_is_reported_and_not_trusted():
    made = Made()
    made.delta(CHAIN)
    for number in range(UNTOLD):
        made.events.answered(number * PATIENCE_S)
    assert (made.events.status, made.index.match(CHAIN), made.learned.told) == ("silent", {}, set())
    made.events.state(State(1, 1, 1, 0, 0, 0, 0, 0))
    assert (made.events.status, made.learned.told) == ("live", {"a"})


def test_a_few_answers_or_a_short_while_prove_nothing():
    made = Made()
    for _ in range(UNTOLD * 2):
        made.events.answered(1.0)
    assert made.events.status == "waiting"
    made.delta([])
    for number in range(UNTOLD - 1):
        made.events.answered(number * PATIENCE_S)
    assert made.events.status == "live"


def test_without_its_reader_nothing_is_known():
    made = Made()
    made.delta(CHAIN)
    made.events.away()
    assert (made.events.status, made.index.match(CHAIN), made.learned.told) == ("away", {}, set())
    made.delta(CHAIN)
    assert made.index.depth("a", CHAIN, Source.EXACT) == 3
