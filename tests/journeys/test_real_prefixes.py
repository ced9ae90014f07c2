"""Prefix routing against running engines: tokens, events, and no ghosts after a restart.

`pytest -m engine tests/journeys/test_real_prefixes.py` starts engines itself, by FOREBAY_RIG's
scripts and from RIG_HOME, on ports from FOREBAY_PORTS on, 8300 where it is not set. Each takes half
a minute to start.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from forebay.gateway.prompts.local import load
from forebay.policies.contracts import Route
from forebay.prefixcache.slots import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.journeys.conftest import Gateway, Kit

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PORT = int(os.environ.get("FOREBAY_PORTS", "8300"))
TEMPLATE = """{% if tools %}<|im_start|>system
You may call:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if m.content is string else m.content | map(attribute='text') | join }}\
{% if m.tool_calls %}{% for c in m.tool_calls %}
<call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</call>\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the weather is like — über alles.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
        }
    ],
}
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hello"}]},
    {"messages": [{"role": "user", "content": "  two  spaces\n\nand lines 🙂 "}]},
    {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]},
        ]
    },
    {"messages": [{"role": "user", "content": "in Köln?"}], "tools": [TOOL]},
    {
        "messages": [
            {"role": "user", "content": "in Köln?"},
            CALL,
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "user", "content": "and tomorrow?"},
        ],
        "tools": [TOOL, {"type": "function", "function": {"name": "bare"}}],
    },
]


class Engine:
    """One engine of the rig, with its events to be connected to."""

    def __init__(self, kind: str, port: int, folder: Path, model: Path) -> None:
        self.kind = kind
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.events = {
            "address": f"tcp://127.0.0.1:{port + 1000}",
            "replay": f"tcp://127.0.0.1:{port + 2000}",
        }
        self._folder = folder
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        events = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.port + 1000}",
            "replay_endpoint": f"tcp://*:{self.port + 2000}",
            "topic": "kv",
        }
        if self.kind == "vllm":
            events["enable_kv_cache_events"] = True  # type: ignore[assignment] - JSON
        rig = Path(os.environ["FOREBAY_RIG"])
        more = ["--page-size", "16"] if self.kind == "sglang" else []
        log = (self._folder / f"{self.kind}-{self.port}.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *(str(rig / "serve.sh"), self.kind, str(self.port)),
                    *("--kv-events-config", json.dumps(events)),
                    *more,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "MODEL_DIR": str(self._model), "PYTHONPATH": ""},
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it and its children as kill -9 does."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    async def ready(self) -> None:
        async with asyncio.timeout(240), httpx.AsyncClient() as http:
            while True:
                try:
                    if (await http.get(f"{self.url}/health", timeout=20)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                assert self._process is not None
                assert self._process.poll() is None
                await asyncio.sleep(0.3)  # an engine sets no event

    async def tokens(self, body: dict[str, Any]) -> list[int]:
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{self.url}/tokenize", json={"model": "tiny", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["tokens"]

    def section(self, name: str, *, events: bool = True) -> dict[str, Any]:
        own = {"name": name, "engine": self.kind, "url": self.url}
        return {**own, "events": self.events} if events else own


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rig's model with a template that speaks of tools."""
    if "FOREBAY_RIG" not in os.environ or "RIG_HOME" not in os.environ:
        pytest.skip("FOREBAY_RIG and RIG_HOME do not both name a folder")
    home = Path(os.environ["RIG_HOME"])
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(home / "model" / "tiny", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    made = Engine(request.param, PORT, tmp_path_factory.mktemp("engines"), model)
    made.start()
    try:
        asyncio.run(made.ready())
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("body", CHATS)
def test_tokens_cut_here_are_the_engines(engine: Engine, model: Path, body: dict[str, Any]):
    tokens = load(str(model), dialect=engine.kind)  # type: ignore[arg-type] - one of the two
    cut = tokens.tokens(Route.CHAT, body)
    assert cut is not None
    assert array("I", cut).tolist() == asyncio.run(engine.tokens(body))


def settings(kit: Kit, engine: Engine, model: Path, *, mode: str, events: bool, **more: Any) -> Any:
    prefix: dict[str, Any] = {"mode": mode, "block_tokens": 32, **more}
    if mode == "exact":
        prefix["tokenizer"] = str(model)
    pool = {
        "prefix": prefix,
        "models": {"m": "tiny"},
        "health": {"interval": 1.0, "fails": 1, "successes": 1},
    }
    return kit.config([engine.section("e0", events=events)], pool=pool)


async def ask(kit: Kit, gateway: Gateway, text: str) -> tuple[int, dict[str, Any]]:
    """Return the predicted hit, and the usage that the engine told."""
    body = kit.chat(text, max_tokens=4, temperature=0, tools=[TOOL], tool_choice="none")
    answer = await gateway.ask(kit.post(body))
    assert answer.status == 200, answer.body
    return int(answer.headers["x-forebay-prefix-hit-tokens"]), answer.json["usage"]


def cached(usage: dict[str, Any]) -> int:
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    return details.get("cached_tokens") or 0


LONG = " ".join(f"part {n} of what many ask;" for n in range(60))


async def usable(gateway: Gateway) -> None:
    """Wait until a probe has passed; a busy machine may let one fail before."""
    async with asyncio.timeout(60):
        await asyncio.sleep(1.5)
        while not gateway.pool.endpoints["e0"].view.usable:  # noqa: ASYNC110 - set by no event
            await asyncio.sleep(0.02)


async def held(gateway: Gateway, least: int) -> None:
    prefix = gateway.pool.prefix
    assert prefix is not None
    async with asyncio.timeout(20):
        while prefix.index.held("e0", Source.EXACT) < least:  # noqa: ASYNC110 - set by no event
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", ["exact", "learned"])
def test_no_ghost_outlives_a_kill_and_restart_on_the_same_port(
    kit: Kit, engine: Engine, model: Path, mode: str
):
    events = mode == "exact"

    async def run() -> None:
        async with kit.running(settings(kit, engine, model, mode=mode, events=events)) as gateway:
            await asyncio.sleep(1.5)
            await ask(kit, gateway, LONG)
            if events:
                await held(gateway, 10)
            predicted, usage = await ask(kit, gateway, LONG)
            assert predicted >= 300
            assert cached(usage) >= predicted * 0.9
            prefix = gateway.pool.prefix
            assert prefix is not None
            if events:
                assert prefix.placements.miscounted == 0
                assert prefix.placements.counted == 2
            engine.kill()
            engine.start()
            await engine.ready()
            async with asyncio.timeout(30):
                while not gateway.pool.endpoints["e0"].view.usable:  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.02)
            await asyncio.sleep(1.5)  # one poll
            predicted, usage = await ask(kit, gateway, LONG)
            assert (predicted, cached(usage)) == (0, 0)
            if events:
                await held(gateway, 10)
            predicted, usage = await ask(kit, gateway, LONG)
            assert predicted >= 300
            assert cached(usage) >= predicted * 0.9
            assert prefix.learned.ghosts == 0

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["exact", "learned"])
def test_a_restarted_engine_is_warm_before_its_first_caller(
    kit: Kit, engine: Engine, model: Path, mode: str
):
    events = mode == "exact"

    async def run() -> None:
        made = settings(kit, engine, model, mode=mode, events=events, warm={"rate": 4.0})
        async with kit.running(made) as gateway:
            await usable(gateway)
            for text in ("one", "two", "three", "four", "five"):
                await ask(kit, gateway, f"{LONG} and {text} asks {text}")
                await asyncio.sleep(0.5)
            prefix = gateway.pool.prefix
            assert prefix is not None
            assert prefix.warmer is not None
            assert len(prefix.warmer.hot) == 1
            engine.kill()
            engine.start()
            await engine.ready()
            await usable(gateway)
            async with asyncio.timeout(60):
                while not prefix.warmer.results["warmed"]:  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.02)
            if events:
                await held(gateway, 10)
            predicted, usage = await ask(kit, gateway, f"{LONG} and six asks six")
            assert prefix.warmer.tokens >= 300
            assert predicted >= 300
            assert cached(usage) >= predicted * 0.9
            assert prefix.learned.ghosts == 0

    asyncio.run(run())
