# pyright: reportPrivateUsage=false
# (a test may look inside)
"""One endpoint's connections over real sockets: what goes out, what is reused, what is counted."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.adapters.connections import Connections
from forebay.policies.contracts import ConfigError, EngineFailed, EngineUnreachable, NotSent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Peer, Recorder, Run, Upstream

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CERTIFICATE = Path(__file__).with_name("loopback.pem")


def dial(url: str, **settings: Any) -> Connections:
    defaults: dict[str, Any] = {"key": None, "connect_timeout": 5.0, "keep_alive": 5.0}
    return Connections(url, loop=asyncio.get_running_loop(), **(defaults | settings))


async def serve(peer: Peer) -> None:
    """Answer every request on the connection."""
    while await peer.request():
        peer.send(ANSWER)


async def ask(store: Connections, sink: Recorder, *, body: bytes = b"{}") -> Recorder:
    store.open("POST", "/v1/completions", [("accept", "*/*")], body, sink)
    await sink.done.wait()
    return sink


def test_a_request_goes_out_whole_and_its_answer_comes_in(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    seen: list[bytes] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        peer.send(b"HTTP/1.1 201 Made\r\nX-Thing: One\r\ncontent-length: 2\r\n\r\nhi")
        await peer.gone()

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url, key="secret")
            sink = await ask(store, recorder())
            assert sink.calls == [
                ("head", 201, [(b"x-thing", b"One"), (b"content-length", b"2")]),
                ("data", b"hi"),
                ("end",),
            ]
            assert seen == [
                b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                b"authorization: Bearer secret\r\naccept: */*\r\ncontent-length: 2\r\n\r\n{}"
                % server.port
            ]
            store.close()

    run(main())


def test_a_large_body_arrives_whole(run: Run, upstream: type[Upstream], recorder: type[Recorder]):
    body = bytes(range(256)) * (32 << 10)
    seen: list[bytes] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        peer.send(ANSWER)
        await peer.gone()

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            assert (await ask(store, recorder(), body=body)).data == b"hi"
            assert seen[0].endswith(b"\r\n\r\n" + body)
            assert store.idle == 1
            store.close()

    run(main())


def test_the_most_recently_used_connection_goes_first(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url)
            sinks = [recorder() for _ in range(3)]
            for sink in sinks:
                store.open("GET", "/", [], b"", sink)
            assert (store.open_connections, store.idle) == (3, 0)
            await asyncio.gather(*(sink.done.wait() for sink in sinks))
            assert (store.open_connections, store.idle) == (3, 3)
            last = store._idle[-1]
            for _ in range(5):
                await ask(store, recorder())
            assert server.accepted == 3
            assert store._idle[-1] is last
            store.close()

    run(main())


def test_the_next_request_from_inside_the_end_reuses_the_connection(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url)
            second = recorder()

            def again(call: str) -> None:
                if call == "end":
                    store.open("GET", "/again", [], b"", second)

            await ask(store, recorder(again))
            await second.done.wait()
            assert (server.accepted, second.data) == (1, b"hi")
            store.close()

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nconnection: Keep-Alive, Close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiX",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200",
        ANSWER + ANSWER,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + ANSWER,
    ],
)
def test_a_connection_that_closes_or_says_more_is_not_reused(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    answer: bytes,
):
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(answer)
        await peer.gone()

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            sink = await ask(store, recorder())
            assert (sink.names, sink.data, store.idle) == (["head", "data", "end"], b"hi", 0)
            await until(lambda: store.open_connections == 0)

    run(main())


def test_http_1_0_with_keep_alive_is_reused(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def script(peer: Peer) -> None:
        while await peer.request():
            peer.send(b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi")

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            for _ in range(3):
                assert (await ask(store, recorder())).data == b"hi"
            assert server.accepted == 1
            store.close()

    run(main())


def test_bytes_on_an_idle_connection_close_it(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def main() -> None:
        speak = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            peer.send(ANSWER)
            await speak.wait()
            peer.send(ANSWER.replace(b"hi", b"no"))
            await peer.gone()

        async with upstream(script, serve) as server:
            store = dial(server.url)
            await ask(store, recorder())
            assert store.idle == 1
            speak.set()
            await until(lambda: store.open_connections == 0)
            assert (await ask(store, recorder())).data == b"hi"
            assert server.accepted == 2
            store.close()

    run(main())


def test_an_idle_connection_that_the_engine_closes_is_forgotten(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(ANSWER)

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            await ask(store, recorder())
            await until(lambda: (store.open_connections, store.idle) == (0, 0))

    run(main())


@pytest.mark.parametrize("keep_alive", [1.0, 0.5, 0.0])
def test_an_engine_without_keep_alive_gets_a_connection_for_each_request(
    run: Run, upstream: type[Upstream], recorder: type[Recorder], keep_alive: float
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url, keep_alive=keep_alive)
            await ask(store, recorder())
            await ask(store, recorder())
            assert (server.accepted, store.idle) == (2, 0)

    run(main())


def test_idle_connections_are_dropped_after_the_keep_alive_less_a_second(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url, keep_alive=1.02)
            await ask(store, recorder())
            assert store.idle == 1
            await until(lambda: store.open_connections == 0)
            assert store._sweeper is None

    run(main())


def test_a_connection_too_old_is_not_reused_even_before_it_is_swept(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url, keep_alive=60.0)
            await ask(store, recorder())
            store._idle[0].idle_since -= 4.0
            await ask(store, recorder())
            assert (server.accepted, store.idle) == (2, 1)
            store.close()

    run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_a_stale_connection_is_replaced_once_without_a_word(
    run: Run, upstream: type[Upstream], recorder: type[Recorder], *, reset: bool
):
    async def stale(peer: Peer) -> None:
        await peer.request()
        peer.send(ANSWER)
        await peer.request()
        if reset:
            peer.reset()

    async def main() -> None:
        async with upstream(stale, serve) as server:
            store = dial(server.url)
            await ask(store, recorder())
            sink = await ask(store, recorder())
            assert (sink.names, sink.data) == (["head", "data", "end"], b"hi")
            assert server.accepted == 2
            store.close()

    run(main())


def test_a_request_is_not_sent_a_third_time(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def stale(peer: Peer) -> None:
        await peer.request()
        peer.send(ANSWER)
        await peer.request()

    async def broken(peer: Peer) -> None:
        await peer.request()

    async def main() -> None:
        async with upstream(stale, broken) as server:
            store = dial(server.url)
            await ask(store, recorder())
            sink = await ask(store, recorder())
            assert sink.names == ["failure"]
            assert type(sink.error) is EngineFailed
            assert server.accepted == 2

    run(main())


def test_a_stale_connection_whose_engine_is_gone_is_unreachable(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        leave = asyncio.Event()

        async def stale(peer: Peer) -> None:
            await peer.request()
            peer.send(ANSWER)
            await peer.request()
            await leave.wait()

        async with upstream(stale) as server:
            store = dial(server.url)
            await ask(store, recorder())
            sink = recorder()
            stream = store.open("GET", "/", [], b"", sink)
            assert stream.sent
            server.stop()
            leave.set()
            await sink.done.wait()
            assert type(sink.error) is EngineUnreachable
            assert not stream.sent

    run(main())


@pytest.mark.parametrize(
    "partial", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]
)
def test_a_reused_connection_that_has_answered_a_byte_is_not_retried(
    run: Run, upstream: type[Upstream], recorder: type[Recorder], partial: bytes
):
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(ANSWER)
        await peer.request()
        peer.send(partial)

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            await ask(store, recorder())
            sink = await ask(store, recorder())
            assert (type(sink.error), server.accepted) == (EngineFailed, 1)
            assert sink.error.message.endswith("in the head of its answer")

    run(main())


def test_a_fresh_connection_that_closes_before_an_answer_is_a_failure(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def script(peer: Peer) -> None:
        await peer.request()

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url)
            sink = recorder()
            stream = store.open("POST", "/", [], b"{}", sink)
            assert not stream.sent
            await sink.done.wait()
            assert (sink.names, type(sink.error), stream.sent) == (["failure"], EngineFailed, True)
            assert sink.error.message == (
                f"127.0.0.1:{server.port} closed the connection before it answered"
            )

    run(main())


def test_nobody_listening_is_unreachable(
    run: Run, recorder: type[Recorder], until: Callable[..., Awaitable[None]]
):
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            store = dial(f"http://127.0.0.1:{port}")
            sink = await ask(store, recorder())
            assert sink.names == ["failure"]
            assert type(sink.error) is EngineUnreachable
            assert sink.error.message == f"cannot connect to 127.0.0.1:{port}: connection refused"
            await until(lambda: store.open_connections == 0)

    run(main())


def test_no_socket_left_is_our_failure_and_not_the_engines(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                sink = await ask(store, recorder())
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert type(sink.error) is NotSent
            assert (sink.error.status, sink.error.code) == (503, "no_socket_left")
            assert sink.error.retry_after == 1.0
            assert (server.accepted, store.open_connections) == (0, 0)
            assert "end" in (await ask(store, recorder())).names

    run(main())


def test_a_name_that_does_not_resolve_is_unreachable(run: Run, recorder: type[Recorder]):
    async def main() -> None:
        store = dial("http://nowhere.invalid:9")
        sink = await ask(store, recorder())
        assert type(sink.error) is EngineUnreachable
        assert sink.error.message.startswith("cannot connect to nowhere.invalid:9: ")
        assert store.open_connections == 0

    run(main())


def test_a_connect_that_takes_too_long_is_unreachable(run: Run, recorder: type[Recorder]):
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            store = dial(f"http://127.0.0.1:{port}", connect_timeout=0.05)
            sink = await ask(store, recorder())
            assert type(sink.error) is EngineUnreachable
            assert sink.error.message.endswith(": no connection within 0.05 s")
            assert store.open_connections == 0
            for filler in fillers:
                filler.close()

    run(main())


def test_a_header_that_cannot_be_sent_is_our_failure_and_goes_nowhere(
    run: Run, upstream: type[Upstream], recorder: type[Recorder]
):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url)
            sink = recorder()
            store.open("POST", "/", [("x-a", "canary\r\nx-b: c")], b"", sink)
            assert sink.calls == []
            await sink.done.wait()
            assert type(sink.error) is NotSent
            assert (sink.error.status, sink.error.code) == (500, "internal_error")
            assert sink.error.message == ("request not sent: header x-a holds a line break or NUL")
            assert (server.accepted, store.open_connections) == (0, 0)

            silent = recorder()
            store.open("POST", "bad path", [], b"", silent).close()
            await asyncio.sleep(0)
            assert silent.calls == []

    run(main())


def test_sockets_have_no_delay(run: Run, upstream: type[Upstream], recorder: type[Recorder]):
    async def main() -> None:
        async with upstream(serve) as server:
            store = dial(server.url)
            await ask(store, recorder())
            transport = store._idle[0]._transport
            assert transport is not None
            option = transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY
            )
            assert option != 0
            store.close()

    run(main())


def test_closing_the_store_lets_an_answer_under_way_end(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def main() -> None:
        go_on = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            peer.send(ANSWER[:-1])
            await go_on.wait()
            peer.send(ANSWER[-1:])
            await peer.gone()

        async with upstream(serve, script) as server:
            store = dial(server.url)
            idle, busy = recorder(), recorder()
            store.open("GET", "/", [], b"", idle)
            store.open("GET", "/", [], b"", busy)
            await idle.done.wait()
            await until(lambda: busy.status == 200)
            store.close()
            store.close()
            await until(lambda: store.open_connections == 1)
            go_on.set()
            await busy.done.wait()
            assert (busy.names, busy.data) == (["head", "data", "end"], b"hi")
            await until(lambda: store.open_connections == 0)

    run(main())


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://engine", b"engine"),
        ("https://engine/", b"engine"),
        ("http://engine:80", b"engine:80"),
        ("http://[::1]:8000", b"[::1]:8000"),
        ("http://[::1]", b"[::1]"),
    ],
)
def test_the_host_header_is_the_urls(run: Run, url: str, host: bytes):
    async def main() -> None:
        head = dial(url)._heads.write("GET", "/", [], 0)
        assert head == b"GET / HTTP/1.1\r\nhost: " + host + b"\r\n\r\n"

    run(main())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://engine:0",
        "http://engine:70000",
        "http://engine:x",
        "http://user:canary@engine",
        "http://engine?x=canary",
        "http://engine#x",
        "http://[::1",
        "http://eng ine",
        "http://engine/a\r\nb",
        "http://engine/a b",
    ],
)
def test_a_url_that_cannot_be_used_is_a_config_error(run: Run, url: str):
    async def main() -> None:
        with pytest.raises(ConfigError, match="url must read") as caught:
            dial(url)
        assert "canary" not in str(caught.value)

    run(main())


def test_a_key_that_cannot_be_sent_is_a_config_error(run: Run):
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"^engine:80: the endpoint's key must be") as caught:
            dial("http://engine", key="canary\r\n")
        assert "canary" not in str(caught.value)

    run(main())


def server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


def test_tls_trusts_the_certificates_of_the_environment(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    async def main() -> None:
        async with upstream(serve, tls=server_tls()) as server:
            store = dial(server.url)
            for _ in range(3):
                sink = await ask(store, recorder(), body=b"x" * 300_000)
                assert (sink.names, sink.data) == (["head", "data", "end"], b"hi")
            assert (server.accepted, store.idle) == (1, 1)
            store.close()
            await until(lambda: store.open_connections == 0)

    run(main())


def test_a_certificate_that_nobody_vouches_for_is_unreachable(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def main() -> None:
        async with upstream(serve, tls=server_tls()) as server:
            store = dial(server.url)
            sink = await ask(store, recorder())
            assert type(sink.error) is EngineUnreachable
            assert "CERTIFICATE_VERIFY_FAILED" in sink.error.message
            await until(lambda: store.open_connections == 0)

    run(main())


def test_tls_to_a_server_without_it_is_unreachable(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
):
    async def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await peer.gone()

    async def main() -> None:
        async with upstream(script) as server:
            store = dial(server.url.replace("http:", "https:"))
            sink = await ask(store, recorder())
            assert type(sink.error) is EngineUnreachable
            await until(lambda: store.open_connections == 0)

    run(main())
