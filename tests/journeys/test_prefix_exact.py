"""Prompts by their tokens, and engines that say what they hold, through a whole gateway."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from forebay.adapters.sim_events import EventPublisher
from forebay.gateway.prompts.local import load
from forebay.policies.contracts import Route
from forebay.prefixcache.index import Source

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit

SIZE = 16
WORDS = ["what", "many", "people", "ask", "again", "and", "in", "other", "words", "user", ":"]
LONG = " ".join(WORDS[n % 9] for n in range(100))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder with a tokenizer of a few words."""
    vocabulary = {word: n for n, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[reportAttributeAccessIssue] - the library's own way
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


def tokens(kit: Kit, model: Path, text: str) -> list[int]:
    cut = load(str(model)).tokens(Route.CHAT, kit.chat(text))
    assert cut is not None
    return array("I", cut).tolist()


def stored(ids: list[int], first: int = 0) -> dict[str, Any]:
    """Write an event of a prompt's whole blocks, from the one numbered `first` on."""
    count = len(ids) // SIZE
    names = [hash(tuple(ids[: (n + 1) * SIZE])) & (1 << 64) - 1 for n in range(count)]
    return {
        "type": "BlockStored",
        "block_hashes": names[first:],
        "parent_block_hash": names[first - 1] if first else None,
        "token_ids": ids[first * SIZE : count * SIZE],
        "block_size": SIZE,
    }


async def predicted(kit: Kit, gateway: Gateway, text: str) -> tuple[str, int]:
    answer = await gateway.ask(kit.post(kit.chat(text)))
    assert answer.status == 200
    return answer.headers["x-forebay-endpoint"], int(answer.headers["x-forebay-prefix-hit-tokens"])


async def holds(gateway: Gateway, blocks: int) -> None:
    prefix = gateway.pool.prefix
    assert prefix is not None
    async with asyncio.timeout(20):
        while prefix.index.held("e1", Source.EXACT) != blocks:  # noqa: ASYNC110 - set by no event
            await asyncio.sleep(0.01)


def test_a_request_goes_where_the_engine_says_its_prefix_lies(
    go: Go, kit: Kit, model: Path, tmp_path: Path
):
    async def answer(peer: Peer, _request: bytes, _number: int) -> None:
        usage = {"prompt_tokens": 103, "completion_tokens": 1, "total_tokens": 104}
        peer.send(kit.whole({"id": "c", "choices": [], "usage": usage}))

    async def run() -> None:
        live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
        publisher = EventPublisher(live, replay=replay, clock=lambda: 0.0)
        publisher.watch(asyncio.get_running_loop())
        prefix = {"mode": "auto", "tokenizer": str(model), "block_tokens": SIZE}
        async with kit.engine(answer, kind="vllm") as one, kit.engine(answer, kind="vllm") as two:
            told = {"address": live, "replay": replay}
            endpoints = [
                {**one.section(), "name": "e0"},
                {**two.section(), "name": "e1", "events": told},
            ]
            ids = tokens(kit, model, LONG)
            publisher.publish([stored(ids)])
            async with kit.running(kit.config(endpoints, pool={"prefix": prefix})) as gateway:
                for _ in range(500):  # until the reader has joined, what comes is lost
                    publisher.publish([])
                    await asyncio.sleep(0.01)
                    assert gateway.pool.prefix is not None
                    if gateway.pool.prefix.index.held("e1", Source.EXACT):
                        break
                await holds(gateway, len(ids) // SIZE)
                assert await predicted(kit, gateway, LONG) == ("e1", len(ids) // SIZE * SIZE)
                publisher.restart()
                publisher.publish([])
                await holds(gateway, 0)
                known = gateway.pool.prefix
                assert known is not None
                assert known.counted + known.miscounted == 1
                metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
                assert 'forebay_prefix_source{endpoint="e1",pool="p",source="exact"} 1.0' in metrics
                assert (
                    'forebay_prefix_event_faults_total{endpoint="e1",kind="restart",pool="p"}'
                    in metrics
                )
        publisher.close()

    go(run())


def test_what_is_late_goes_on_by_its_text(go: Go, kit: Kit, model: Path, tmp_path: Path):
    async def run() -> None:
        async def answer(peer: Peer, _request: bytes, _number: int) -> None:
            peer.send(kit.whole({"id": "c", "choices": []}))

        prefix = {"mode": "auto", "tokenizer": str(model), "tokenize_budget": 1e-9}
        told = f"ipc://{tmp_path}/live"
        async with kit.engine(answer, kind="vllm") as engine:
            endpoints = [{**engine.section(), "events": told}]
            config = kit.config(endpoints, pool={"prefix": prefix})
            async with kit.running(config) as gateway:
                assert (await predicted(kit, gateway, LONG))[1] == 0
                assert (await predicted(kit, gateway, LONG))[1] > 100
                known = gateway.pool.prefix
                assert known is not None
                assert known.cutter is not None
                assert known.cutter.late == 2

    go(run())
