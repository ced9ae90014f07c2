"""An embedded engine behind a port, as `forebay engine sim` serves it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from forebay.adapters.sim import Embedded
from forebay.gateway.connections import Connections
from forebay.gateway.engine_host import EngineHost
from forebay.gateway.messages import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.conftest import Run

BODY: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def hosted(
    model: str | tuple[str, ...] = "sim",
) -> AsyncGenerator[tuple[Embedded, httpx.AsyncClient]]:
    embedded = Embedded(model=model, profile="instant")
    server = Connections(EngineHost(embedded), Limits(), time.monotonic)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(server.accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield embedded, client
    listener.close()
    for connection in tuple(server.open):
        connection.transport.abort()
    await asyncio.sleep(0.01)


def test_it_answers_and_streams_over_http(run: Run):
    async def main() -> None:
        async with hosted() as (_, client):
            whole = await client.post("/v1/chat/completions", json=BODY)
            assert (whole.status_code, whole.json()["object"]) == (200, "chat.completion")
            assert whole.headers["content-length"] == str(len(whole.content))
            streamed = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
            assert streamed.headers["content-type"].startswith("text/event-stream")
            assert streamed.text.endswith("data: [DONE]\n\n")
            missing = await client.get("/nothing")
            assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
            bad = await client.post("/v1/chat/completions", content=b"{")
            assert bad.status_code == 400

    run(main())


def test_it_lists_its_models(run: Run):
    async def main() -> None:
        async with hosted(model=("a", "b")) as (_, client):
            found = await client.get("/v1/models")
            assert [card["id"] for card in found.json()["data"]] == ["a", "b"]

    run(main())


def test_a_fault_breaks_the_connection_as_a_dead_engine_does(run: Run):
    async def main() -> None:
        async with hosted() as (_, client):
            for fault, stream in (("refuse", False), ("cut", True), ("cut", False)):
                body = BODY | {"stream": stream, "sim": {"fault": fault, "output_tokens": 9}}
                try:
                    await client.post("/v1/chat/completions", json=body)
                except httpx.TransportError:
                    continue
                raise AssertionError(fault)
            assert (await client.get("/health")).status_code == 200

    run(main())


def test_a_caller_that_leaves_stops_the_engine(run: Run, until: Any):
    async def main() -> None:
        async with hosted() as (embedded, client):
            body = BODY | {"stream": True, "sim": {"fault": "stall_after_first"}}
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                await anext(answer.aiter_bytes())
                assert embedded.running == 1
            await until(lambda: embedded.running == 0)

    run(main())
