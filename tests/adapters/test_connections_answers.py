# pyright: reportPrivateUsage=false
# (a test may look inside)
"""What an engine may answer, however it is cut into reads, and what it may not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.adapters.connection_exchange import Exchange
from forebay.adapters.connection_socket import Connection
from forebay.adapters.connections import Connections
from forebay.policies.contracts import EngineFailed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from tests.conftest import Peer, Recorder, Run, Upstream

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


class Desk:
    """A store of one connection, which notes whether it came back."""

    loop: asyncio.AbstractEventLoop
    host = "engine"
    port = 80
    name = "engine:80"
    tls: ssl.SSLContext | None = None
    connect_timeout = 1.0
    max_head = 200

    def __init__(self) -> None:
        self.released = False

    def connect(self, exchange: Exchange) -> None:  # noqa: ARG002 - the protocol's signature
        raise AssertionError("a fresh connection is not retried")

    def release(self, connection: Connection) -> None:  # noqa: ARG002 - the protocol's signature
        self.released = True

    def forget(self, connection: Connection) -> None:
        pass


def play(sink: Recorder, reads: Sequence[bytes], *, eof: bool, method: str = "GET") -> bool:
    """Push the reads through a connection; True when it could be used again."""
    store, wire = Desk(), Wire()
    exchange = Exchange(sink, is_head=method == "HEAD")
    connection = Connection(store)
    connection._exchange = exchange
    exchange.carrier = connection
    connection.connection_made(wire)
    for read in reads:
        if not wire.closing:
            connection.data_received(read)
    assert wire.closing is (sink.done.is_set() and not store.released)
    if eof and not wire.closing:
        connection.eof_received()
    connection.connection_lost(None)
    return store.released


def summary(sink: Recorder) -> tuple[Any, ...]:
    calls = [call[1:] for call in sink.calls if call[0] == "head"]
    error = sink.error.message if "failure" in sink.names else None
    return sink.names, calls, sink.data, error


WHOLE = {
    "length": OK + b"X-A: 1\r\nContent-Length: 11\r\n\r\nhello\r\nyou\n",
    "empty": OK + b"content-length: 0\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\na",
    "chunked": CHUNKED
    + b'b;ext="x y"\r\ndata: {}\r\n\n\r\n00A;a\r\ndata: \xc3\xa9\n\n\r\n'
    + b"0;last\r\nX-T: 1\r\nx-u: 2\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n"
    b"content-length: 5\r\n\r\n" + OK + b"content-length: 2\r\n\r\nhi",
    "no content": b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n",
    "1.0 kept": b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi",
}
ENDED = {
    "1.0": b"HTTP/1.0 200 OK\r\nserver: old\r\n\r\nuntil the end",
    "1.1 without length": OK + b"\r\nuntil the end",
    "1.0 empty": b"HTTP/1.0 200 OK\r\n\r\n",
}
BROKEN = {
    "cut length": OK + b"content-length: 9\r\n\r\nhi",
    "cut chunk": CHUNKED + b"5\r\nhi",
    "cut before the last chunk": CHUNKED + b"2\r\nhi\r\n",
    "cut in trailers": CHUNKED + b"2\r\nhi\r\n0\r\nx: y\r\n",
    "cut head": OK + b"content-length: 9\r\n",
    "bad chunk size": CHUNKED + b"2\r\nhi\r\nzz\r\n",
    "long chunk": CHUNKED + b"2\r\nhigh\r\n",
    "bad trailer": CHUNKED + b"2\r\nhi\r\n0\r\ncontent-length: 3\r\n\r\n",
    "long head": OK + b"x-a: " + b"a" * 190 + b"\r\ncontent-length: 1\r\n\r\na",
    "long interim heads": b"HTTP/1.1 100 Continue\r\nx: yyyyyyyyyyyyyyyyyyyyy\r\n\r\n" * 5
    + OK
    + b"content-length: 1\r\n\r\na",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n",
    "status": b"HTTP/1.1 700 OK\r\ncontent-length: 1\r\n\r\na",
}
ALL = WHOLE | ENDED | BROKEN


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer_ends_and_its_connection_is_kept(name: str, recorder: type[Recorder]):
    sink = recorder()
    assert play(sink, [WHOLE[name]], eof=False)
    assert sink.names[-1] == "end"


def test_a_chunked_answer_is_what_its_chunks_held_in_one_call(recorder: type[Recorder]):
    sink = recorder()
    play(sink, [WHOLE["chunked"]], eof=False)
    assert sink.calls == [
        ("head", 200, [(b"transfer-encoding", b"chunked")]),
        ("data", "data: {}\r\n\ndata: é\n\n".encode()),
        ("end",),
    ]


def test_interim_answers_leave_no_trace(recorder: type[Recorder]):
    sink = recorder()
    play(sink, [WHOLE["interim"]], eof=False)
    assert sink.calls == [("head", 200, [(b"content-length", b"2")]), ("data", b"hi"), ("end",)]


@pytest.mark.parametrize("name", ENDED)
def test_an_answer_without_a_length_ends_with_its_connection(name: str, recorder: type[Recorder]):
    sink = recorder()
    assert not play(sink, [ENDED[name]], eof=True)
    assert sink.names[-1] == "end"
    assert sink.data == ENDED[name].partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_a_failure(name: str, recorder: type[Recorder]):
    sink = recorder()
    assert not play(sink, [BROKEN[name]], eof=True)
    assert sink.names[-1] == "failure"
    assert type(sink.error) is EngineFailed


@pytest.mark.parametrize("name", ALL)
def test_an_answer_cut_anywhere_is_the_same_answer(name: str, recorder: type[Recorder]):
    answer, whole, bytewise = ALL[name], recorder(), recorder()
    play(whole, [answer], eof=True)
    play(bytewise, [answer[i : i + 1] for i in range(len(answer))], eof=True)
    assert summary(bytewise) == summary(whole)
    for cut in range(1, len(answer)):
        sink = recorder()
        play(sink, [answer[:cut], answer[cut:]], eof=True)
        assert summary(sink) == summary(whole), cut


@given(st.data())
def test_any_cuts_give_the_same_answer(recorder: type[Recorder], data: st.DataObject):
    answer = ALL[data.draw(st.sampled_from(sorted(ALL)))]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=12)))
    whole, cut = recorder(), recorder()
    play(whole, [answer], eof=True)
    bounds = zip([0, *cuts], [*cuts, len(answer)], strict=True)
    play(cut, [answer[a:b] for a, b in bounds], eof=True)
    assert summary(cut) == summary(whole)


@given(st.data())
def test_random_damage_never_raises_nor_hangs(recorder: type[Recorder], data: st.DataObject):
    answer = bytearray(ALL[data.draw(st.sampled_from(sorted(ALL)))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(answer) - 1))
        answer[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b"\r", b"\n", b"\0", b" ", b":", b"0", b"f", b"\xff", b"\r\n\r\n"]
            )
            | st.binary(max_size=3)
        )
        answer += b"" if answer else b"x"
    sink = recorder()
    play(sink, [bytes(answer)], eof=True)
    assert sink.names in (["failure"], ["head", "failure"], ["head", "data", "failure"]) or (
        sink.names in (["head", "end"], ["head", "data", "end"])
    )


@given(st.binary(min_size=1, max_size=64))
def test_noise_is_a_failure(recorder: type[Recorder], noise: bytes):
    sink = recorder()
    assert not play(sink, [noise], eof=True)
    assert sink.names == ["failure"]


@pytest.mark.parametrize(
    "head",
    [b"content-length: 5\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n", b"\r\n"],
)
@pytest.mark.parametrize("rest", [b"", b"hello"])
def test_an_answer_to_head_has_no_body(recorder: type[Recorder], head: bytes, rest: bytes):
    sink = recorder()
    assert not play(sink, [OK + head + rest], eof=False, method="HEAD")
    assert sink.names == ["head", "end"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "does not begin with http/"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "does not begin with http/"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not begin with http/"),
        (b"<html></html>", "does not begin with http/"),
        (b"ICE/1.0 200 OK\r\n\r\n", "does not begin with http/"),
        (b"\r\n\r\n" + OK + b"content-length: 0\r\n\r\n", "does not begin with http/"),
        (b"HTTX", "expected http/"),
        (b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n", "http/2.0"),
        (b"HTTP/0.9 200 OK\r\n\r\n", "http/0.9"),
        (b"HTTP/1.2 200 OK\r\n\r\n", "invalid http version"),
        (b"HTTP/1.1  200 OK\r\n\r\n", "invalid status code"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "invalid response status"),
        (b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n", "status 99"),
        (b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n", "status 600"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "an upgrade"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 17, "over 16 interim answers"),
        (OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi", "duplicate content-length"),
        (OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi", "duplicate content-length"),
        (OK + b"content-length: 2, 2\r\n\r\nhi", "content-length"),
        (OK + b"content-length: +2\r\n\r\nhi", "content-length"),
        (OK + b"content-length: -2\r\n\r\nhi", "content-length"),
        (OK + b"content-length: 0x2\r\n\r\nhi", "content-length"),
        (OK + b"content-length: 2 2\r\n\r\nhi", "content-length"),
        (OK + b"content-length: \r\n\r\nhi", "empty content-length"),
        (OK + b"content-length: 99999999999999999999\r\n\r\n", "content-length overflow"),
        (OK + b"content-length : 2\r\n\r\nhi", "invalid header field char"),
        (OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", "can't be present"),
        (OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n", "can't be present"),
        (OK + b"transfer-encoding: gzip\r\n\r\nhi", "other than chunked"),
        (OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi", "an encoded body"),
        (OK + b"transfer-encoding: xchunked\r\n\r\nhi", "other than chunked"),
        (OK + b"transfer-encoding: gzip, chunked\r\n\r\n", "other than chunked"),
        (OK + b"transfer-encoding: chunked, gzip\r\n\r\n", "other than chunked"),
        (OK + b"transfer-encoding: identity\r\n\r\n", "other than chunked"),
        (OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", "other than"),
        (b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "chunked body in http"),
        (OK + b"transfer-encoding:\x0bchunked\r\n\r\n", "invalid header value char"),
        (OK + b"x: a\x00b\r\n\r\n", "invalid header value char"),
        (OK + b"x: a\r\n b\r\n\r\n", "whitespace after header value"),
        (OK + b"x: a\nb: c\r\n\r\n", "missing expected cr"),
        (OK + b"x: a\rb: c\r\n\r\n", "missing expected lf"),
        (OK + b"no colon\r\n\r\n", "invalid header"),
        (OK + b": no name\r\n\r\n", "invalid header"),
        (b"HTTP/1.1 200 OK\ncontent-length: 0\n\n", "missing expected cr"),
        (CHUNKED + b"g\r\n", "chunk size"),
        (CHUNKED + b"-1\r\n", "chunk size"),
        (CHUNKED + b" 1\r\n", "chunk size"),
        (CHUNKED + b"1 \r\na\r\n", "chunk size"),
        (CHUNKED + b"0x1\r\na\r\n", "chunk size"),
        (CHUNKED + b"\r\na\r\n", "chunk size"),
        (CHUNKED + b"1\na\r\n", "chunk size"),
        (CHUNKED + b"fffffffffffffffff\r\n", "chunk size overflow"),
        (OK + b"x: " + b"y" * 70_000 + b"\r\n\r\n", "head is over 65536 bytes"),
        (OK + b"x: y\r\n" * 20_000 + b"\r\n", "head is over 65536 bytes"),
        (CHUNKED + b"1;" + b"y" * 400_000 + b"\r\na\r\n", "chunk heads or trailers"),
        (CHUNKED + b"0\r\nx: " + b"y" * 400_000 + b"\r\n\r\n", "chunk heads or trailers"),
    ],
)
def test_what_is_no_valid_answer_closes_the_connection(
    run: Run,
    upstream: type[Upstream],
    recorder: type[Recorder],
    until: Callable[..., Awaitable[None]],
    answer: bytes,
    fault: str,
):
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(answer)
        await peer.gone()

    async def main() -> None:
        async with upstream(script) as server:
            loop = asyncio.get_running_loop()
            store = Connections(
                server.url, key=None, connect_timeout=5.0, keep_alive=5.0, loop=loop
            )
            sink = recorder()
            store.open("GET", "/", [], b"", sink)
            await sink.done.wait()
            assert sink.names[-1] == "failure"
            assert sink.data == b""
            assert type(sink.error) is EngineFailed
            assert sink.error.message.startswith(f"no valid HTTP from 127.0.0.1:{server.port}: ")
            assert fault in sink.error.message
            assert store.idle == 0
            await until(lambda: (store.open_connections, server.open) == (0, 0))

    run(main())
