# ruff: noqa: D102 - the methods are those of asyncio's protocol and of our sink
"""What a request and a chunk cost in `adapters.connections`, in CPU of the client's process.

The engine is a second process on loopback that parses nothing: its cost is not counted. Three
scenes: whole answers over keep-alive, a stream in bulk (reads of 16 KB), and many streams whose
chunks come one by one.

    python benchmarks/bench_connections.py [--loop asyncio]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from typing import TYPE_CHECKING, cast

import uvloop

from forebay.adapters.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection as Pipe

    from forebay.adapters.base import Headers
    from forebay.policies.contracts import EngineFailed

BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 400 + b'"}]}'
HEADERS = [
    ("content-type", "application/json"),
    ("accept", "*/*"),
    ("accept-encoding", "identity"),
    ("x-request-id", "0123456789abcdef0123456789abcdef"),
]
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    b'{"content":" word"},"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
SERVER = b"date: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\n%bcontent-length: 600\r\ncontent-type: application/json\r\n\r\n%b" % (
    SERVER,
    b"y" * 600,
)
HEAD = (
    b"HTTP/1.1 200 OK\r\n%bcontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    % SERVER
)
PER_READ = 16384 // len(CHUNK)
TICK = 0.005


class Engine(asyncio.Protocol):
    """Answers by the path's second letter: w(hole), b(ulk) or s(low)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.flowing = asyncio.Event()
        self.flowing.set()

    def pause_writing(self) -> None:
        self.flowing.clear()

    def resume_writing(self) -> None:
        self.flowing.set()

    def data_received(self, data: bytes) -> None:
        kind, count = chr(data[6]), int(data[7:].split(b" ", 1)[0] or 0)
        if kind == "w":
            self.transport.write(WHOLE)
        elif kind == "b":
            self.task = asyncio.ensure_future(self.bulk(count))
        else:
            self.transport.write(HEAD)
            self.slow(count)

    async def bulk(self, count: int) -> None:
        self.transport.write(HEAD)
        for _ in range(count // PER_READ):
            await self.flowing.wait()
            self.transport.write(CHUNK * PER_READ)
            await asyncio.sleep(0)
        self.transport.write(b"0\r\n\r\n")

    def slow(self, left: int) -> None:
        if left == 0:
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(CHUNK)
        asyncio.get_running_loop().call_later(TICK, self.slow, left - 1)


def serve(pipe: Pipe) -> None:
    """Run the engine until it is terminated."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


class Count:
    """A sink that counts, and calls back at the end."""

    __slots__ = ("calls", "done", "size")

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done
        self.calls = 0
        self.size = 0

    def on_head(self, status: int, headers: Headers) -> None:
        assert (status, headers[1]) == (200, (b"server", b"uvicorn"))

    def on_data(self, data: bytes) -> None:
        self.calls += 1
        self.size += len(data)

    def on_end(self) -> None:
        self.done()

    def on_failure(self, error: EngineFailed) -> None:
        raise error


async def flood(store: Connections, path: str, *, total: int, width: int) -> tuple[int, int]:
    """Keep `width` requests under way until `total` have ended: reads and bytes of bodies."""
    finished = asyncio.Event()
    started = ended = reads = size = 0

    def begin() -> None:
        nonlocal started
        started += 1
        sink = Count(lambda: end(sink))
        store.open("POST", path, HEADERS, BODY, sink)

    def end(sink: Count) -> None:
        nonlocal ended, reads, size
        ended, reads, size = ended + 1, reads + sink.calls, size + sink.size
        if started < total:
            begin()
        elif ended == total:
            finished.set()

    for _ in range(width):
        begin()
    await finished.wait()
    return reads, size


async def measure(port: int) -> None:
    """Run the three scenes and print what each cost."""
    store = Connections(
        f"http://127.0.0.1:{port}",
        key="sk-engine",
        connect_timeout=5.0,
        keep_alive=5.0,
        loop=asyncio.get_running_loop(),
    )
    await flood(store, "/w", total=5000, width=64)
    for scene, path, total, width in (
        ("whole answers", "/w", 50_000, 64),
        ("bulk", "/b100000", 8, 2),
        ("one by one", "/s200", 500, 500),
    ):
        cpu, wall = time.process_time(), time.perf_counter()
        reads, size = await flood(store, path, total=total, width=width)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if path == "/w":
            print(f"{scene}: {cpu / total * 1e6:.2f} us a request, {total / wall:.0f} requests/s")
            continue
        chunks = size // len(EVENT)
        print(
            f"{scene}: {cpu / chunks * 1e6:.3f} us a chunk, {chunks / reads:.1f} chunks a read, "
            f"{chunks / wall:.0f} chunks/s"
        )
    store.close()


def main() -> None:
    """Start the engine, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    factory = uvloop.new_event_loop
    if parser.parse_args().loop == "asyncio":
        factory = asyncio.new_event_loop
    here, there = multiprocessing.Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    engine.start()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(measure(here.recv()))
    finally:
        engine.terminate()


if __name__ == "__main__":
    main()
