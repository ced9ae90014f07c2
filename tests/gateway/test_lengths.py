"""A pool's predictor reads in a thread of its own: who reads there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from math import log1p
from typing import TYPE_CHECKING, Self

from msgspec import structs
from tests.asking import a_request

from forebay.gateway import wire
from forebay.gateway.lengths import PoolLength, Readers
from forebay.policies.contracts import Outcome, Route
from forebay.scheduler.length import Prediction
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
