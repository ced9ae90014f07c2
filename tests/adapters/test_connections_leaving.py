# pyright: reportPrivateUsage=false
# (a test may look inside)
"""Leaving, resets, back-pressure and early answers, at every phase; and that nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.adapters.connections import Connections
from forebay.policies.contracts import EngineFailed, EngineUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Peer, Recorder, Run, Upstream

    from forebay.adapters.base import Stream

CERTIFICATE = Path(__file__).with_name("loopback.pem")
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"5\r\nhello\r\n"
STALL = b"5\r\nstall\r\n"
LAST = b"0\r\n\r\n"
ANSWER = HEAD + CHUNK + LAST
LARGE = b"x" * (16 << 20)


def dial(url: str, *, connect_timeout: float = 5.0) -> Connections:
    loop = asyncio.get_running_loop()
    return Connections(url, key=None, connect_timeout=connect_timeout, keep_alive=60.0, loop=loop)


async def serve(peer: Peer) -> None:
    while await peer.request():
        peer.send(ANSWER)


async def stall(peer: Peer) -> None:
    """Begin an answer and never end it."""
    await peer.request()
    peer.send(HEAD + CHUNK)
    await peer.gone()


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("phase", ["opened", "sent", "head", "data"])
def test_closing_at_any_phase_closes_the_socket_and_pushes_nothing_more(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    phase: str,
    *,
    reused: bool,
):
    async def script(peer: Peer) -> None:
        await peer.request()
        seen.append("sent")
        if phase == "head":
            peer.send(HEAD)
        if phase == "data":
            peer.send(HEAD + CHUNK)
        await peer.gone()
        seen.append("gone")

    async def first_serve(peer: Peer) -> None:
        await peer.request()
        peer.send(ANSWER)
        await script(peer)

    seen: list[str] = []

    async def main() -> None:
        async with upstream(first_serve if reused else script) as server:
            store, sink = dial(server.url), recorder()
            if reused:
                warm = recorder()
                store.open("GET", "/", [], b"", warm)
                await warm.done.wait()
            stream = store.open("POST", "/", [], b"{}", sink)
            if phase == "sent":
                await until(lambda: seen)
            if phase in ("head", "data"):
                await until(lambda: phase in sink.names)
            before = list(sink.calls)
            stream.close()
            stream.close()
            stream.pause()
            stream.resume()
            await until(lambda: (store.open_connections, server.open) == (0, 0))
            assert sink.calls == before
            assert store.idle == 0

    run(main())


def test_closing_during_a_name_lookup_cancels_it(
    run: Run, recorder: type[Recorder], until: Callable[..., Awaitable[None]]
):
    async def main() -> None:
        store, sink = dial("http://localhost:9"), recorder()
        stream = store.open("POST", "/", [], b"{}", sink)
        await asyncio.sleep(0)
        stream.close()
        await until(lambda: store.open_connections == 0)
        assert sink.calls == []

    run(main())


@pytest.mark.parametrize("turns", range(8))
def test_closing_at_any_turn_of_a_connect_leaves_nothing(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    turns: int,
):
    async def main() -> None:
        async with upstream(stall) as server:
            store, sink = dial(server.url), recorder()
            stream = store.open("POST", "/", [], b"{}", sink)
            for _ in range(turns):
                await asyncio.sleep(0)
            stream.close()
            pushed = len(sink.calls)
            await until(lambda: (store.open_connections, server.open) == (0, 0))
            assert len(sink.calls) == pushed

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_closing_at_any_turn_of_a_tls_handshake_leaves_nothing(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    turns: int,
):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)

    async def main() -> None:
        async with upstream(stall, tls=context) as server:
            store, sink = dial(server.url), recorder()
            stream = store.open("POST", "/", [], b"{}", sink)
            for _ in range(turns):
                await asyncio.sleep(0)
            stream.close()
            pushed = len(sink.calls)
            await until(lambda: (store.open_connections, server.open) == (0, 0))
            assert len(sink.calls) == pushed

    run(main())


@pytest.mark.parametrize("call", ["head", "data", "end", "failure"])
def test_a_sink_may_close_from_inside_any_call(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    call: str,
):
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD + CHUNK + (b"zz\r\n" if call == "failure" else CHUNK))
        if call == "end":
            peer.send(LAST)
        await peer.gone()

    async def main() -> None:
        streams: list[Stream] = []
        async with upstream(script) as server:
            store = dial(server.url)
            sink = recorder(lambda name: streams[0].close() if name == call else None)
            streams.append(store.open("GET", "/", [], b"", sink))
            await until(lambda: call in sink.names)
            store.close()
            await until(lambda: (store.open_connections, server.open) == (0, 0))
            assert sink.names[-1] == call
            assert len([c for c in sink.calls if c[0] == call]) == 1

    run(main())


@pytest.mark.parametrize("call", ["head", "data"])
def test_closing_when_the_whole_answer_was_read_saves_the_connection_but_not_the_body(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    call: str,
):
    async def main() -> None:
        streams: list[Stream] = []
        async with upstream(serve) as server:
            store = dial(server.url)
            sink = recorder(lambda name: streams[0].close() if name == call else None)
            streams.append(store.open("GET", "/", [], b"", sink))
            await until(lambda: store.idle == 1)
            assert sink.names[-1] == call
            after = recorder()
            store.open("GET", "/", [], b"", after)
            await after.done.wait()
            assert (after.data, server.accepted) == (b"hello", 1)
            store.close()

    run(main())


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("answer", "names", "when"),
    [
        (b"", ["failure"], "before it answered"),
        (b"HTTP/1.1 200", ["failure"], "in the head of its answer"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", ["failure"], "in the head of its answer"),
        (HEAD, ["head", "failure"], "in the middle of its answer"),
        (HEAD + CHUNK, ["head", "data", "failure"], "in the middle of its answer"),
        (HEAD + b"5\r\nhe", ["head", "data", "failure"], "in the middle of its answer"),
    ],
)
def test_an_engine_that_breaks_off_is_a_failure_that_says_when(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    answer: bytes,
    names: list[str],
    when: str,
    *,
    reset: bool,
):
    async def main() -> None:
        leave = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            peer.send(answer)
            await leave.wait()
            if reset:
                peer.reset()

        async with upstream(script) as server:
            store, sink = dial(server.url), recorder()
            store.open("POST", "/", [], b"{}", sink)
            await until(lambda: sink.names == names[:-1] and server.accepted)
            for _ in range(3):
                await asyncio.sleep(0)  # a part of a head is pushed nowhere: let it come
            leave.set()
            await sink.done.wait()
            assert sink.names == names
            assert type(sink.error) is EngineFailed
            if not reset or names != ["failure"]:  # a reset may overtake what went before it
                assert sink.error.message.endswith(f"closed the connection {when}")
            await until(lambda: store.open_connections == 0)

    run(main())


def test_a_reset_does_not_end_an_answer_without_a_length(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def main() -> None:
        leave = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            peer.send(b"HTTP/1.0 200 OK\r\n\r\npart")
            await leave.wait()
            peer.reset()

        async with upstream(script) as server:
            store, sink = dial(server.url), recorder()
            store.open("GET", "/", [], b"", sink)
            await until(lambda: sink.data == b"part")
            leave.set()
            await sink.done.wait()
            assert sink.names == ["head", "data", "failure"]

    run(main())


def test_a_paused_stream_makes_the_engine_wait(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
):
    async def main() -> None:
        blocked, drained = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE))
            for at in range(0, len(LARGE), 1 << 16):
                peer.send(LARGE[at : at + (1 << 16)])
                if peer.writer.transport.get_write_buffer_size() > 8 << 20:
                    blocked.set()
            await peer.drain()
            drained.set()
            await peer.gone()

        async with upstream(script) as server:
            store = dial(server.url)
            streams: list[Stream] = []
            sink = recorder(lambda name: streams[0].pause() if name == "head" else None)
            streams.append(store.open("GET", "/", [], b"", sink))
            await blocked.wait()
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(sink.data) < 1 << 20
            assert not drained.is_set()
            streams[0].resume()
            await sink.done.wait()
            assert sink.data == LARGE
            assert store.idle == 1
            store.close()

    run(main())


def test_a_stream_paused_before_its_connection_is_made_reads_nothing_until_resumed(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
):
    async def main() -> None:
        answered = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            peer.send(ANSWER)
            await peer.drain()
            answered.set()
            await peer.gone()

        async with upstream(script) as server:
            store, sink = dial(server.url), recorder()
            stream = store.open("GET", "/", [], b"", sink)
            stream.pause()
            await answered.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert sink.calls == []
            stream.resume()
            await sink.done.wait()
            assert sink.data == b"hello"
            store.close()

    run(main())


def test_a_connection_whose_stream_ended_paused_reads_again_for_the_next(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        streams: list[Stream] = []
        async with upstream(serve) as server:
            store = dial(server.url)
            paused = recorder(lambda name: streams[0].pause() if name == "data" else None)
            streams.append(store.open("GET", "/", [], b"", paused))
            await paused.done.wait()
            following = recorder()
            store.open("GET", "/", [], b"", following)
            await following.done.wait()
            assert (following.data, server.accepted) == (b"hello", 1)
            store.close()

    run(main())


def test_an_answer_before_the_body_is_read_is_delivered_and_ends_the_connection(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nlong")
        await peer.gone()

    async def main() -> None:
        async with upstream(script) as server:
            store, sink = dial(server.url), recorder()
            stream = store.open("POST", "/", [], LARGE, sink)
            await sink.done.wait()
            assert (sink.status, sink.data) == (413, b"long")
            assert sink.names == ["head", "data", "end"]
            assert (store.idle, stream.sent) == (0, False)
            await until(lambda: store.open_connections == 0)

    run(main())


def test_sent_is_true_once_a_large_body_has_nearly_gone(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def main() -> None:
        connected, read_on = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            connected.set()
            await read_on.wait()
            await peer.request()
            await peer.gone()

        async with upstream(script) as server:
            store, sink = dial(server.url), recorder()
            stream = store.open("POST", "/", [], LARGE, sink)
            await connected.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not stream.sent
            read_on.set()
            await until(lambda: stream.sent)
            stream.close()
            await until(lambda: store.open_connections == 0)

    run(main())


def test_an_engine_that_leaves_in_the_middle_of_a_large_body_did_not_get_it_all(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.reset()

    async def main() -> None:
        async with upstream(script) as server:
            store, sink = dial(server.url), recorder()
            stream = store.open("POST", "/", [], LARGE, sink)
            await sink.done.wait()
            assert (type(sink.error), stream.sent) == (EngineFailed, False)
            await until(lambda: store.open_connections == 0)

    run(main())


@pytest.mark.parametrize("connect_timeout", [0.0, 0.00002, 0.0001, 0.0003])
def test_a_connect_timeout_at_any_moment_ends_the_request_once(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    connect_timeout: float,
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url, connect_timeout=connect_timeout)
            for _ in range(100):
                sink = recorder()
                store.open("GET", "/", [], b"", sink)
                await sink.done.wait()
                assert sink.names == ["head", "data", "end"] or (
                    type(sink.error) is EngineUnreachable
                )
                store._drop_idle()
            await until(lambda: (store.open_connections, server.open) == (0, 0))

    run(main())


def test_a_loop_that_shuts_down_ends_a_connect(run: Run, recorder: type[Recorder]):
    async def main() -> None:
        store, sink = dial("http://127.0.0.1:9"), recorder()
        store.open("GET", "/", [], b"", sink)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await sink.done.wait()
        assert sink.error.message == "cannot connect to 127.0.0.1:9: the loop is shutting down"
        assert store.open_connections == 0

    run(main())


async def fickle(peer: Peer, rng: random.Random) -> None:
    """Serve requests until chance breaks the connection in one of many ways."""
    while await peer.request():
        kind = rng.randrange(12)
        if kind == 0:
            return
        if kind == 1:
            peer.reset()
            return
        if kind == 2:
            peer.send(ANSWER[: rng.randrange(1, len(ANSWER))])
            return
        if kind == 3:
            peer.send(HEAD + b"not a size\r\n")
            await peer.gone()
            return
        if kind == 4:
            peer.send(HEAD + STALL)
            await peer.gone()
            return
        if kind == 5:
            peer.send(ANSWER + b"more")
            await peer.gone()
            return
        peer.send(ANSWER)
        if kind == 6:
            return


def test_ten_thousand_requests_with_every_fault_leak_nothing(  # noqa: C901 - one scene
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    rng = random.Random(7)

    async def script(peer: Peer) -> None:
        await fickle(peer, rng)

    async def one(store: Connections) -> None:
        act, nth = rng.choice(["", "", "", "close", "pause", "now"]), rng.randrange(3)
        streams: list[Stream] = []
        ended = asyncio.Event()

        def then(name: str) -> None:
            if name in ("end", "failure"):
                ended.set()
            elif sink.data == b"stall" or (act == "close" and len(sink.calls) > nth):
                streams[0].close()
                ended.set()
            elif act == "pause":
                streams[0].pause()
                store.loop.call_soon(streams[0].resume)

        sink = recorder(then)
        streams.append(store.open("POST", "/", [("accept", "*/*")], b"{}", sink))
        if act == "now":
            await asyncio.sleep(0)
            streams[0].close()
            return
        await ended.wait()
        assert "failure" not in sink.names or type(sink.error) is not EngineUnreachable

    async def worker(store: Connections, count: int) -> None:
        for _ in range(count):
            await one(store)

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            tasks = asyncio.all_tasks()
            await asyncio.gather(*(worker(store, 250) for _ in range(40)))
            store.close()
            await until(lambda: (store.open_connections, server.open) == (0, 0))
            assert store.idle == 0
            await until(lambda: asyncio.all_tasks() == tasks)

    run(main())
    gc.collect()  # what was left open warns here, and warnings are errors
