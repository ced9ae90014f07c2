"""The adapters against running engines: `FOREBAY_ENGINES=vllm=http://127.0.0.1:8101,...`.

Run by hand (`pytest -m engine`) and recorded in docs/engines.md. Each engine must serve a chat
model with prefix caching and priority scheduling on, and tell cached tokens in its usage.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from forebay.adapters.base import Adapter, Call, EngineError, Target, Translation, Verdict
from forebay.adapters.registry import ADAPTERS
from forebay.policies.contracts import InvalidRequest, Route

pytestmark = pytest.mark.engine

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something."}]}
LONG = " ".join(f"item {n} of a prefix that many requests share;" for n in range(40))


class Engine:
    """One running engine, spoken to through its adapter."""

    def __init__(self, name: str, url: str, http: httpx.AsyncClient) -> None:
        self.adapter: Adapter = ADAPTERS[name]
        self.target = Target(name, url)
        self.http = http
        self.model = ""

    async def meet(self) -> None:
        probe = await self.adapter.probe(self.http, self.target)
        self.model = probe.models[0].name

    def prepare(
        self, route: Route, body: dict[str, Any], **call: Any
    ) -> tuple[Translation, dict[str, Any]]:
        """Translate, and apply the edits as the gateway does; the second is the request."""
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
        request_id = call.pop("request_id", None) or uuid4().hex
        model = call.pop("model", self.model)
        said = self.adapter.translate(
            Call(request_id, route, "POST", route.value, model, raw, **call)
        )
        kept = {name: value for name, value in raw.items() if name not in said.drop}
        members = kept | {name: msgspec.Raw(value) for name, value in said.set.items()}
        return said, {
            "url": self.target.url + said.path,
            "content": msgspec.json.encode(members),
            "headers": [("content-type", "application/json"), *said.headers],
        }

    async def send(self, route: Route, body: dict[str, Any], **call: Any) -> tuple[int, bytes]:
        said, request = self.prepare(route, body, **call)
        answer = await self.http.post(**request)
        if said.answer is None or answer.status_code != 200:
            return answer.status_code, answer.content
        return answer.status_code, said.answer(answer.content)

    async def ask(self, route: Route, body: dict[str, Any], **call: Any) -> dict[str, Any]:
        status, answer = await self.send(route, body, **call)
        assert status == 200, answer
        return msgspec.json.decode(answer)

    async def fail(self, route: Route, body: dict[str, Any], **call: Any) -> EngineError:
        status, answer = await self.send(route, body, **call)
        assert status >= 400, answer
        return self.adapter.read_error(status, answer)

    async def running(self) -> int | None:
        return (await self.adapter.read_load(self.http, self.target)).running

    async def has_running(self, number: int) -> None:
        async with asyncio.timeout(10):
            while await self.running() != number:  # noqa: ASYNC110 - an engine sets no event
                await asyncio.sleep(0.02)


def addresses() -> dict[str, str]:
    """Engine names to URLs, from the environment."""
    pairs = os.environ.get("FOREBAY_ENGINES", "").split(",")
    return {name: url for name, _, url in (pair.partition("=") for pair in pairs) if url}


With = Callable[[Callable[[Engine], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["vllm", "sglang", "llamacpp"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param not in addresses():
        pytest.skip(f"FOREBAY_ENGINES names no {request.param}")
    return request.param


@pytest.fixture
def with_engine(name: str) -> With:
    """Run a coroutine function on the engine, met."""

    async def run(play: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            engine = Engine(name, addresses()[name], http)
            await engine.meet()
            await play(engine)

    return lambda play: asyncio.run(run(play))


def test_a_probe_says_what_the_engine_is(name: str, with_engine: With):
    async def play(engine: Engine) -> None:
        probe = await engine.adapter.probe(engine.http, engine.target)

        assert probe.engine == name
        assert probe.version
        assert probe.models[0].max_model_len
        assert (probe.limit is None) == (name == "vllm")
        assert (probe.routes is None) == (name != "vllm")
        assert (probe.started is None) == (name != "vllm")

    with_engine(play)


def test_an_idle_engine_says_so(name: str, with_engine: With):
    async def play(engine: Engine) -> None:
        await engine.has_running(0)
        load = await engine.adapter.read_load(engine.http, engine.target)

        assert (load.running, load.waiting) == (0, 0)
        assert (load.kv_use is None) == (name == "llamacpp")

    with_engine(play)


def test_every_control_field_at_once_is_harmless(with_engine: With):
    async def play(engine: Engine) -> None:
        body = {**CHAT, "max_tokens": 2} | dict.fromkeys(engine.adapter.control_fields, "canary")

        answer = await engine.ask(Route.CHAT, body)

        assert answer["usage"]["completion_tokens"] == 2

    with_engine(play)


def test_a_missing_route_is_told_from_a_missing_model(name: str, with_engine: With):
    async def play(engine: Engine) -> None:
        answer = await engine.http.post(engine.target.url + "/v1/nope", json={})
        unknown = await engine.send(Route.CHAT, {**CHAT, "max_tokens": 1}, model="nope")

        missing = engine.adapter.read_error(answer.status_code, answer.content)
        assert missing.verdict is Verdict.MISSING_ROUTE
        assert (unknown[0] == 404) == (name == "vllm")
        if unknown[0] == 404:
            assert engine.adapter.read_error(*unknown).verdict is Verdict.MISCONFIGURED

    with_engine(play)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"temperature": "hot"}, id="a wrong type"),
        pytest.param({"messages": [{"role": "user", "content": "word " * 30_000}]}, id="too long"),
        pytest.param({"messages": "hi"}, id="no messages"),
        pytest.param({"n": 0}, id="no answers"),
        pytest.param(
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
                            }
                        ],
                    }
                ]
            },
            id="an image for a text model",
        ),
    ],
)
def test_the_callers_own_fault_is_no_sign_of_ill_health(wrong: dict[str, Any], with_engine: With):
    async def play(engine: Engine) -> None:
        error = await engine.fail(Route.CHAT, {**CHAT, "max_tokens": 1, **wrong})

        assert error.verdict is Verdict.NEUTRAL
        assert "without a message" not in error.message
        assert "/site-packages/" not in error.message

    with_engine(play)


def test_embeddings_of_a_chat_model_are_a_missing_route(with_engine: With):
    async def play(engine: Engine) -> None:
        error = await engine.fail(Route.EMBEDDINGS, {"input": "hi"})

        assert error.verdict is Verdict.MISSING_ROUTE

    with_engine(play)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_a_metered_stream_ends_with_its_usage(name: str, route: Route, with_engine: With):
    async def play(engine: Engine) -> None:
        body: dict[str, Any] = {"max_tokens": 3, "stream": True}
        body |= CHAT if route is Route.CHAT else {"prompt": "Say something."}

        status, answer = await engine.send(route, body, stream=True, meter_usage=True)

        lines = [line[6:] for line in answer.splitlines() if line.startswith(b"data: ")]
        assert (status, lines[-1]) == (200, b"[DONE]")
        last = msgspec.json.decode(lines[-2])
        assert last["usage"]["completion_tokens"] == 3
        # llama-server's completions tell it unasked, in the last choice's own event.
        assert (last["choices"] == []) == ((name, route) != ("llamacpp", Route.COMPLETIONS))

    with_engine(play)


def test_tokens_and_their_text_have_one_shape_everywhere(with_engine: With):
    async def play(engine: Engine) -> None:
        told = await engine.ask(Route.TOKENIZE, {"prompt": "hello there"})
        back = await engine.ask(Route.DETOKENIZE, {"tokens": told["tokens"]})

        assert told["count"] == len(told["tokens"]) > 0
        assert "max_model_len" in told
        assert back["prompt"].endswith("hello there")

    with_engine(play)


def test_messages_are_tokenized_or_refused(name: str, with_engine: With):
    async def play(engine: Engine) -> None:
        if name == "llamacpp":
            with pytest.raises(InvalidRequest):
                await engine.ask(Route.TOKENIZE, {"messages": CHAT["messages"]})
            return
        told = await engine.ask(Route.TOKENIZE, {"messages": CHAT["messages"]})
        counted = await engine.ask(Route.COUNT_TOKENS, {"messages": CHAT["messages"]})
        assert told["count"] == counted["input_tokens"]

    with_engine(play)


def test_a_salt_parts_the_cache(name: str, with_engine: With):
    async def cached(engine: Engine, text: str, salt: str) -> int:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        answer = await engine.ask(Route.CHAT, body, cache_salt=salt)
        details: dict[str, int | None] = answer["usage"].get("prompt_tokens_details") or {}
        return details.get("cached_tokens") or 0

    async def play(engine: Engine) -> None:
        text = uuid4().hex + LONG
        await cached(engine, text, "tenant-a")

        assert await cached(engine, text, "tenant-a") > 100
        # llama-server ignores salts: docs/engines.md says so.
        assert (await cached(engine, text, "tenant-b") > 100) == (name == "llamacpp")

    with_engine(play)


@pytest.mark.parametrize("priority", [-5, 0, 5])
def test_a_priority_is_taken(priority: int, with_engine: With):
    async def play(engine: Engine) -> None:
        answer = await engine.ask(Route.CHAT, {**CHAT, "max_tokens": 1}, priority=priority)

        assert answer["usage"]["completion_tokens"] == 1

    with_engine(play)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", [Route.CHAT, Route.RESPONSES, Route.MESSAGES])
def test_an_engine_stops_within_a_second_once_its_caller_left(
    name: str, route: Route, with_engine: With, *, stream: bool
):
    if (name, route) == ("sglang", Route.MESSAGES):
        pytest.skip("SGLang takes no request id on /v1/messages: its own two seconds apply")
    if name == "llamacpp" and not stream:
        pytest.skip("llama-server gives a whole answer up only after a second without any traffic")

    async def play(engine: Engine) -> None:
        await engine.has_running(0)
        request_id = uuid4().hex
        body: dict[str, Any] = {"ignore_eos": True, "stream": stream}
        if route is Route.RESPONSES:
            body |= {"input": "hi", "max_output_tokens": 3500}
        else:
            body |= {**CHAT, "max_tokens": 3500}
        _, request = engine.prepare(route, body, request_id=request_id, stream=stream)
        caller = asyncio.create_task(engine.http.post(**request))
        await engine.has_running(1)

        caller.cancel()
        await asyncio.wait([caller])
        await engine.adapter.abort(engine.http, engine.target, request_id)

        async with asyncio.timeout(1):
            await engine.has_running(0)

    with_engine(play)
