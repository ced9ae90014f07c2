"""The embedded engine as an opener: answers, streams, faults, leaving."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forebay.adapters.sim import Embedded
from forebay.adapters.sim_engine import SimEngine, SimSettings
from forebay.policies.contracts import EngineFailed, EngineUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from forebay.adapters.base import Headers

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello world"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.calls: list[str] = []
        self.ended = asyncio.get_running_loop().create_future()
        self.on_chunk: Callable[[], None] | None = None
        self.error: EngineFailed | None = None

    def on_head(self, status: int, headers: Headers) -> None:
        self.calls.append("head")
        self.status, self.headers = status, dict(headers)

    def on_data(self, data: bytes) -> None:
        self.calls.append("data")
        self.chunks.append(data)
        if self.on_chunk is not None:
            self.on_chunk()

    def on_end(self) -> None:
        self.calls.append("end")
        self.ended.set_result(None)

    def on_failure(self, error: EngineFailed) -> None:
        self.calls.append("failure")
        self.error = error
        self.ended.set_result(None)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each event but the end mark."""
        assert self.body.endswith(b"data: [DONE]\n\n")
        return [
            msgspec.json.decode(event.removeprefix(b"data: "))
            for event in self.body.split(b"\n\n")[:-2]
        ]


def embedded(**settings: Any) -> Embedded:
    settings.setdefault("profile", "instant")
    return Embedded(engine=SimEngine(SimSettings(**settings), clock=lambda: 1_700_000_000.0))


def start(engine: Embedded, body: Any, path: str = CHAT, method: str = "POST") -> tuple[Any, Heard]:
    heard = Heard()
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return engine.open(method, path, [("content-type", "application/json")], raw, heard), heard


async def ask(engine: Embedded, body: Any, path: str = CHAT, method: str = "POST") -> Heard:
    _, heard = start(engine, body, path, method)
    await heard.ended
    return heard


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


def test_a_chat_answer_is_one_that_the_official_sdk_reads() -> None:
    async def main() -> None:
        heard = await ask(embedded(), {**HELLO, "sim": {"output_tokens": 7}})

        answer = ChatCompletion.model_validate(heard.json)
        assert (heard.status, heard.error) == (200, None)
        assert heard.headers[b"content-type"] == b"application/json"
        assert heard.headers[b"content-length"] == str(len(heard.body)).encode()
        assert (answer.model, answer.object) == ("sim", "chat.completion")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 7
        assert answer.choices[0].finish_reason == "stop"
        assert len((answer.choices[0].message.content or "").split()) >= 5

    run(main())


def test_a_streamed_chat_says_the_same_as_a_whole_one() -> None:
    async def main() -> None:
        whole = (await ask(embedded(), HELLO)).json
        options = {"stream": True, "stream_options": {"include_usage": True}}
        heard = await ask(embedded(), {**HELLO, **options})

        chunks = [ChatCompletionChunk.model_validate(event) for event in heard.events]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        assert heard.headers == {b"content-type": b"text/event-stream; charset=utf-8"}
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].choices == []
        assert heard.events[-1]["usage"] == whole["usage"]

    run(main())


def test_the_sink_is_never_called_before_open_has_returned() -> None:
    async def main() -> None:
        _, heard = start(embedded(), HELLO)
        assert heard.calls == []
        await heard.ended
        assert heard.calls == ["head", "data", "end"]

    run(main())


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "Bad Request"),
        (b"[]", 400, "Bad Request"),
        ({**HELLO, "model": "nope"}, 404, "NotFoundError"),
        ({"model": "sim", "messages": 3}, 400, "Bad Request"),
        ({**HELLO, "n": 0}, 400, "BadRequestError"),
        ({**HELLO, "temperature": -1}, 400, "BadRequestError"),
        ({**HELLO, "max_tokens": 10**6}, 400, "BadRequestError"),
        ({**HELLO, "sim": {"fault": "nope"}}, 400, "BadRequestError"),
        ({**HELLO, "stop": ""}, 400, "BadRequestError"),
        ({**HELLO, "cache_salt": ""}, 400, "BadRequestError"),
    ],
)
def test_a_wrong_request_gets_an_error_in_the_engines_shape(
    body: Any, status: int, kind: str
) -> None:
    async def main() -> None:
        heard = await ask(embedded(), body)

        error = heard.json["error"]
        assert (heard.status, error["type"], error["code"]) == (status, kind, status)
        assert set(error) == {"message", "type", "param", "code"}

    run(main())


def test_a_caller_that_leaves_frees_the_engine_at_once() -> None:
    async def main() -> None:
        engine = embedded(profile="demo")
        stream, heard = start(engine, {**HELLO, "stream": True})
        first = asyncio.Event()
        heard.on_chunk = first.set
        await first.wait()
        assert engine.load().running == 1

        stream.close()
        told = len(heard.calls)
        assert engine.load().running == 0
        assert engine.engine.model.kv.used == 0
        await asyncio.sleep(0.05)
        assert len(heard.calls) == told

    run(main())


def test_refused_means_that_the_request_was_never_sent() -> None:
    async def main() -> None:
        stream, heard = start(embedded(fault="refuse"), HELLO)
        await heard.ended
        assert isinstance(heard.error, EngineUnreachable)
        assert (stream.sent, heard.calls) == (False, ["failure"])

    run(main())
