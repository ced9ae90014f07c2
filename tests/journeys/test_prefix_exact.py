"""Prompts by their tokens, and engines that say what they hold, through a whole gateway."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from forebay.adapters.sim_events import EventPublisher
from forebay.gateway.prompts.local import load
from forebay.policies.contracts import Route
from forebay.prefixcache.slots import Source

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Peer, RedisServer
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
                assert known.placements.counted + known.placements.miscounted == 1
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


# -- an engine that has to be asked --------------------------------------------------------------


class Asked:
    """A TensorRT-LLM by its documents: what it has to tell, it tells whoever asks first."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._number = 0
        self._waiting: list[dict[str, Any]] = []
        self.asked = 0

    def tell(self, *data: dict[str, Any]) -> None:
        for each in data:
            event = {"event_id": self._number, "data": each, "window_size": 4096}
            self._waiting.append(event)
            self._number += 1

    def restart(self) -> None:
        self._number, self._waiting = 0, []
        self.tell({"type": "created", "num_blocks_per_cache_level": [100, 0]})

    async def __call__(self, peer: Peer, request: bytes, _number: int) -> None:
        if b"/kv_cache_events" in request.split(b"\r\n", 1)[0]:
            assert request.startswith(b"POST ")
            self.asked += 1
            told, self._waiting = self._waiting, []
            peer.send(self._kit.whole(told))
            return
        usage = {"prompt_tokens": 103, "completion_tokens": 1, "total_tokens": 104}
        peer.send(self._kit.whole({"id": "c", "choices": [], "usage": usage}))


def kept(ids: list[int]) -> dict[str, Any]:
    """Write TensorRT-LLM's event of a prompt's whole blocks."""
    blocks = [
        {
            "type": "stored_block",
            "block_hash": hash(tuple(ids[: start + SIZE])) & (1 << 64) - 1,
            "tokens": [
                {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                for token in ids[start : start + SIZE]
            ],
            "cache_level": 0,
            "priority": 35,
        }
        for start in range(0, len(ids) // SIZE * SIZE, SIZE)
    ]
    return {"type": "stored", "parent_hash": None, "blocks": blocks}


def asking(model: Path) -> dict[str, Any]:
    return {"prefix": {"mode": "auto", "tokenizer": str(model), "block_tokens": SIZE}}


def test_an_engine_that_tells_only_when_asked_is_asked(go: Go, kit: Kit, model: Path):
    async def run() -> None:
        told = Asked(kit)
        told.restart()
        ids = tokens(kit, model, LONG)
        told.tell(kept(ids))
        async with kit.engine(told, kind="trtllm") as one, kit.engine(told, kind="vllm") as two:
            endpoints = [
                {**two.section(), "name": "e0"},
                {**one.section(), "name": "e1", "events": {"poll": 0.01}},
            ]
            async with kit.running(kit.config(endpoints, pool=asking(model))) as gateway:
                await holds(gateway, len(ids) // SIZE)
                assert await predicted(kit, gateway, LONG) == ("e1", len(ids) // SIZE * SIZE)
                metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
                assert 'forebay_prefix_source{endpoint="e1",pool="p",source="exact"} 1.0' in metrics
                told.restart()
                await holds(gateway, 0)

    go(run())


def test_one_replica_asks_and_the_others_hear_and_take_over(
    go: Go, kit: Kit, model: Path, redis_server: RedisServer
):
    async def run() -> None:
        told = Asked(kit)
        told.restart()
        ids = tokens(kit, model, LONG)
        async with kit.engine(told, kind="trtllm") as engine:
            endpoints = [{**engine.section(), "name": "e1", "events": {"poll": 0.01}}]
            pool = {"name": f"p{secrets.token_hex(4)}", **asking(model)}
            config = kit.config(endpoints, pool=pool, state={"url": redis_server.url})
            async with kit.running(config) as other:
                async with kit.running(config) as one:
                    told.tell(kept(ids))
                    await holds(one, len(ids) // SIZE)
                    await holds(other, len(ids) // SIZE)
                told.tell({"type": "removed", "block_hashes": [last(ids)]})
                await holds(other, len(ids) // SIZE - 1)
                assert other.pool.prefix is not None
                assert other.pool.prefix.events["e1"].count.gaps == 0
            async with kit.running(config) as again:  # from what is kept for it
                await holds(again, len(ids) // SIZE - 1)
                told.tell(kept(ids))
                await holds(again, len(ids) // SIZE)

    go(run())


def last(ids: list[int]) -> int:
    return hash(tuple(ids[: len(ids) // SIZE * SIZE])) & (1 << 64) - 1
