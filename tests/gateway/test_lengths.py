"""A pool's predictor reads in a thread of its own: who reads there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from math import inf, log1p, nan
from typing import TYPE_CHECKING, Self

import pytest
from msgspec import structs
from tests.asking import a_request

from forebay.gateway import wire
from forebay.gateway.lengths import PoolLength, Readers
from forebay.policies.contracts import Outcome, Route
from forebay.scheduler.length import Prediction
from forebay.scheduler.length.gate import Change
from forebay.scheduler.length.rivals import Rivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.scheduler.length import Example, LengthFeatures

BODY = wire.read(
    json.dumps({"messages": [{"role": "user", "content": "Name three rivers"}]}).encode(),
    frozenset(),
)
REQUEST = a_request(model="big", prompt_tokens_estimate=10)


class Always:
    """Says the same of each, and counts how often it was asked."""

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.asked = 0

    def fit(self, examples: Sequence[Example]) -> Self:
        raise NotImplementedError

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        self.asked += len(features)
        one = Prediction(
            self.tokens,
            (self.tokens, self.tokens, self.tokens),
            (0.0, 1.0, 0.0, 0.0),
            log1p(self.tokens),
        )
        return [one] * len(features)


def test_a_champion_that_was_replaced_reads_no_more():
    champion, challenger = Always(60), Always(100)
    pool = PoolLength(
        Readers(champion, challenger), pool="p", budget=30.0, rivals=Rivals(fewest=20)
    )
    said: list[int] = []
    revised = asyncio.Event()

    def revise(_id: str, tokens: int) -> bool:
        said.append(tokens)
        revised.set()
        return True

    async def asked(name: str) -> None:
        revised.clear()
        pool.ask(structs.replace(REQUEST, id=name), BODY, 1)
        await revised.wait()
        ended = Outcome(name, "p", Route.CHAT, "acme", output_tokens=100)
        pool.learn(structs.replace(REQUEST, id=name), ended)

    async def main() -> tuple[int, int]:
        pool.bind(revise=revise, waits=lambda _id: True, trust=lambda: None)
        assert pool.live.rivals is not None
        number = 0
        while not pool.live.rivals.promoted:
            await asked(f"before-{number}")
            number += 1
        then = (champion.asked, challenger.asked)
        for number in range(20):
            await asked(f"after-{number}")
        return (champion.asked - then[0], challenger.asked - then[1])

    try:
        # The prompt is the same each time, and what the old champion said of it is not told.
        assert asyncio.run(main()) == (0, 1)
        assert said[-1] == 100
        assert pool.results == Counter(cached=pool.results["cached"], predicted=2)
    finally:
        pool.close()


def test_the_status_tells_how_each_models_answers_have_changed():
    pool = PoolLength(Readers(Always(60)), pool="p", budget=30.0)

    async def main() -> None:
        revised = asyncio.Event()

        def revise(_id: str, _tokens: int) -> bool:
            revised.set()
            return True

        pool.bind(revise=revise, waits=lambda _id: True, trust=lambda: None)
        pool.ask(REQUEST, BODY, 1)
        await revised.wait()
        pool.learn(REQUEST, Outcome(REQUEST.id, "p", Route.CHAT, "acme", output_tokens=100))

    try:
        asyncio.run(main())
        assert pool.status().changes == (Change("big", 1, 0.0, None, None),)
    finally:
        pool.close()


class Says:
    """Says the rank it was made with; raises where that is none."""

    def __init__(self, rank: float | None) -> None:
        self.rank = rank

    def fit(self, examples: Sequence[Example]) -> Self:
        raise NotImplementedError

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        if self.rank is None:
            raise RuntimeError("a broken one")
        return [Prediction(1, (1, 1, 1), (1, 0, 0, 0), self.rank)] * len(features)


def ask_once(readers: Readers) -> tuple[list[int], int, int]:
    """Have one prompt read; return what was said of it, how often, and how often that failed."""
    pool = PoolLength(
        readers, pool="p", budget=30.0, rivals=Rivals() if readers.challenger else None
    )
    said: list[int] = []

    async def main() -> None:
        heard = asyncio.Event()
        loop = asyncio.get_running_loop()

        def revise(_id: str, tokens: int) -> bool:
            said.append(tokens)
            return True

        def waits(request_id: str) -> bool:
            if request_id == REQUEST.id:
                return True
            loop.call_soon_threadsafe(heard.set)  # the one thread has done with the first
            return False

        pool.bind(revise=revise, waits=waits, trust=lambda: None)
        pool.ask(REQUEST, BODY, 1)
        pool.ask(structs.replace(REQUEST, id="second"), BODY, 1)
        await heard.wait()

    try:
        asyncio.run(main())
    finally:
        pool.close()
    return said, pool.results["predicted"], pool.results["failed"]


@pytest.mark.parametrize("rank", [nan, inf, -inf, 800.0, 1e308, -1e308, None])
def test_what_is_no_length_is_a_failure_and_the_mean_stands_in(rank: float | None):
    assert ask_once(Readers(Says(rank))) == ([], 0, 1)


@pytest.mark.parametrize("rank", [nan, 800.0, None])
def test_a_challenger_that_fails_does_not_stop_the_champion(
    rank: float | None, caplog: pytest.LogCaptureFixture
):
    champion = Says(log1p(30))
    assert ask_once(Readers(champion, Says(rank))) == ([30], 1, 0)
    assert [record.message for record in caplog.records] == ["challenging length predictor fails"]
