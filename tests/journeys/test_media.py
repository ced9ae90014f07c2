"""Pictures in whole requests: limits, queue and prefixes take them for what they are."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.keys import digest_of
from forebay.gateway.media import FIRST_GUESS

if TYPE_CHECKING:
    from tests.journeys.conftest import Answer, Gateway, Go, Kit

KEY = "fb_m_" + "m" * 43
HEADERS = f"authorization: Bearer {KEY}\r\n"


def picture(seed: int, size: int = 300_000) -> dict[str, Any]:
    data = base64.b64encode(random.Random(seed).randbytes(size)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def shows(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": "look"}, *parts]}


async def ask(gateway: Gateway, kit: Kit, *turns: dict[str, Any]) -> Answer:
    body = {"model": "m", "messages": list(turns), "max_tokens": 2}
    return await gateway.ask(kit.post(body, headers=HEADERS))


def test_a_limit_on_tokens_lets_pictures_in_for_their_tokens(go: Go, kit: Kit):
    async def main() -> None:
        limits = {"tokens_per_minute": 20_000, "max_prompt": 10_000}
        tenant = {"name": "acme", "keys": [digest_of(KEY)], "limits": limits}
        async with kit.running(kit.config([kit.sim("e0")], tenants=[tenant])) as gateway:
            answers = [await ask(gateway, kit, shows(picture(n), picture(-n))) for n in range(1, 5)]
            assert [answer.status for answer in answers] == [200] * 4
            await gateway.quiet()
            told = answers[0].json["usage"]["prompt_tokens"]
            assert 128 < told < 256  # the embedded engine's pictures are small
            learnt = gateway.pool.arrangement.media.tokens
            assert told / 2 < learnt < FIRST_GUESS

    go(main())


@pytest.mark.parametrize("size", [300_000, 700_000])
def test_a_conversation_goes_on_where_its_pictures_were_read(go: Go, kit: Kit, size: int):
    async def main() -> None:
        sims = [kit.sim(f"e{n}") for n in range(3)]
        settings = kit.config(sims, pool={"prefix": {"mode": "learned"}})
        async with kit.running(settings) as gateway:
            turns = [shows(picture(1, size)), {"role": "assistant", "content": "a weir"}]
            first = await ask(gateway, kit, turns[0])
            hits: list[int] = []
            for number in (2, 3):
                turns.append(shows(picture(number, size)))
                answer = await ask(gateway, kit, *turns)
                assert answer.headers["x-forebay-endpoint"] == first.headers["x-forebay-endpoint"]
                hits.append(int(answer.headers["x-forebay-prefix-hit-tokens"]))
                assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
                turns.append({"role": "assistant", "content": "a weir"})
            assert 0 < hits[0] < hits[1]
            other = await ask(gateway, kit, shows(picture(9, size)))
            assert int(other.headers["x-forebay-prefix-hit-tokens"]) == 0

    go(main())
