"""Connections made to break the gateway: floods, callers that take nothing, heads that mislead."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.connections import Connections
from forebay.gateway.heads import KnownHeads
from forebay.gateway.messages import Limits, Refusal
from forebay.gateway.protocol import HttpProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.journeys.conftest import Go, Kit

    from forebay.gateway.messages import Message, Responder

GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\n"


class Wire(asyncio.Transport):
    """A transport whose other side takes nothing until told to."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: HttpProtocol
        self.sent = 0
        self.waiting = 0
        self.reading = True
        self.aborted = self.closed = False
        self.takes = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += len(data)
        if self.takes:
            return
        before, self.waiting = self.waiting, self.waiting + len(data)
        if before <= (64 << 10) < self.waiting:
            self.protocol.pause_writing()

    def take(self, size: int) -> None:
        self.waiting -= min(size, self.waiting)
        if self.waiting < (16 << 10) and self.protocol.slow:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Notes:
    """A host that admits everything and notes what it is asked."""

    def __init__(self, *, whole: bool = True) -> None:
        self.served: list[tuple[str, bytes]] = []
        self.held = 0
        self.whole = whole

    def admit(self, message: Message) -> Refusal | None:
        pass

    def refuse(self, status: int, message: str, path: str) -> Refusal:  # noqa: ARG002 - see Host
        return Refusal(status, b"%d %b" % (status, message.encode()))

    def buffered(self, change: int) -> bool:
        self.held += change
        return True

    def serve(self, message: Message, responder: Responder) -> None:
        self.served.append((message.path, message.body))
        if self.whole:
            responder.send(200, (), b"x" * 100)


def connected(
    host: Notes, *, limits: Limits | None = None
) -> tuple[HttpProtocol, Wire, list[float]]:
    clock = [0.0]
    wire, protocol = Wire(), HttpProtocol(Connections(host, limits or Limits(), lambda: clock[0]))
    wire.protocol = protocol
    protocol.connection_made(wire)
    return protocol, wire, clock


async def turns() -> None:
    for _turn in range(50):
        await asyncio.sleep(0)


def test_requests_whose_answers_nobody_takes_are_not_answered(go: Go):
    async def scenario() -> None:
        host = Notes()
        protocol, wire, _ = connected(host)
        wire.takes = False
        protocol.data_received(GET * 7000)
        assert not wire.reading
        assert wire.waiting < 200_000
        wire.takes = True
        wire.take(1 << 30)
        await turns()
        assert len(host.served) == 7000
        assert wire.reading

    go(scenario())


def test_a_line_that_is_full_reads_no_more_of_what_came(go: Go):
    async def scenario() -> None:
        host = Notes(whole=False)
        protocol, wire, _ = connected(host)
        protocol.data_received(GET * 7000)
        assert not wire.reading
        host.whole = True
        protocol.send(200, (), b"")
        await turns()
        assert len(host.served) == 7000
        assert wire.reading

    go(scenario())


def test_a_flood_behind_an_answer_is_dropped_with_its_connection(go: Go):
    async def scenario() -> None:
        host = Notes(whole=False)
        protocol, _, _ = connected(host)
        protocol.data_received((POST + b"content-length: 3\r\n\r\nabc") * 5000)
        protocol.connection_lost(None)
        await turns()
        assert len(host.served) == 1
        assert host.held == 0

    go(scenario())


def test_answers_that_pile_up_are_no_progress():
    host = Notes()
    protocol, wire, clock = connected(host)
    wire.takes = False
    for second in range(40):
        clock[0] = float(second)
        protocol.data_received(GET * 1000)
        protocol.check_time(clock[0])
    assert wire.aborted


def test_taking_slowly_is_progress():
    host = Notes()
    protocol, wire, clock = connected(host)
    wire.takes = False
    protocol.data_received(GET * 7000)
    for second in range(100):
        clock[0] = float(second)
        wire.take(100)
        protocol.check_time(clock[0])
    assert not wire.aborted


def test_an_idle_connection_whose_last_answer_nobody_takes_is_broken_off():
    host = Notes()
    protocol, wire, clock = connected(host, limits=Limits(keep_alive=5.0))
    wire.takes = False
    protocol.data_received(GET * 700)
    clock[0] = 31.0
    protocol.check_time(clock[0])
    assert wire.aborted


def test_a_body_in_tiny_chunks_weighs_what_it_is_long():
    host = Notes(whole=False)
    protocol, _, _ = connected(host)
    protocol.data_received(POST + b"transfer-encoding: chunked\r\n\r\n")
    for _round in range(100):
        protocol.data_received(b"2\r\nab\r\n" * 2000)
    assert len(protocol._reader._body) < 2000
    protocol.data_received(b"0\r\n\r\n")
    assert host.served == [("/a", b"ab" * 200_000)]


HIDDEN = {
    "in a body": POST + b"content-length:27\r\n\r\n" + b'x\r\ncontent-length: 27\r\n\r\n"}',
    "in the next head": POST
    + b"content-length:0\r\n\r\nPOST /b HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_a_length_that_stands_in_no_head_is_not_learnt(data: bytes):
    host = Notes()
    protocol, _, _ = connected(host)
    protocol.data_received(data)
    assert len(protocol._server.heads) == 0


def test_a_known_head_that_is_cut_anywhere_is_read_to_its_end():
    """Among the cuts: one whose length, less a digit, is that of what came, less three bytes."""
    host = Notes()
    protocol, _, _ = connected(host)
    start = (POST + b"x: ").ljust(103 - len(b"\r\ncontent-length: 1000"), b"y")
    head = start + b"\r\ncontent-length: %d\r\n\r\n"
    protocol.data_received(head % 3 + b"abc")
    assert len(protocol._server.heads) == 1
    whole = head % 1000 + b"z" * 1000
    for cut in range(1, len(head) + 8):
        protocol.data_received(whole[:cut])
        protocol.data_received(whole[cut:])
        assert host.served.pop() == ("/a", b"z" * 1000)
    assert host.served == [("/a", b"abc")]


NAMES = [b"content-length", b"Content-Length", b"X-Content-Length", b"x", b"authorization"]
PIECES = st.one_of(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from([b": ", b":", b":  "]),
        st.sampled_from([b"0", b"3", b"03", b"5", b"Content-Length: 3", b"a\tb", b"3 "]),
    ).map(b"".join),
    st.sampled_from([b"Transfer-Encoding: chunked", b"Connection: close", b"Upgrade: h2c", b"a b"]),
)


def request(path: bytes, lines: list[bytes], end: bytes, body: bytes) -> bytes:
    head = b"".join(line + b"\r\n" for line in lines)
    return b"POST /%b HTTP/1.1\r\n%b%b%b" % (path, head, end, body)


REQUESTS = st.builds(
    request,
    st.sampled_from([b"a", b"b"]),
    st.lists(PIECES, max_size=4),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b""]),
    st.sampled_from([b"", b"abc", b"abcde", b"x\r\ncontent-length: 3\r\n\r\nabc", b"3\r\nabc\r\n"]),
)


class Blank(KnownHeads):
    """Knows nothing, so that everything is parsed."""

    __slots__ = ()

    def take(self, data: bytes, now: float) -> None:  # type: ignore[override] - less is enough
        pass


def answers(reads: Iterable[bytes], heads: KnownHeads) -> tuple[list[tuple[str, bytes]], int]:
    host = Notes()
    connections = Connections(host, Limits(), lambda: 0.0)
    connections.heads = heads
    sent = 0
    for data in reads:
        wire, protocol = Wire(), HttpProtocol(connections)
        wire.protocol = protocol
        protocol.connection_made(wire)
        protocol.data_received(data)
        sent += wire.sent
        protocol.connection_lost(None)
    return host.served, sent


@pytest.mark.interpreted
@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(REQUESTS, min_size=1, max_size=3).map(b"".join), min_size=2, max_size=6))
def test_what_is_known_is_read_as_what_is_not(reads: list[bytes]):
    assert answers(reads, KnownHeads()) == answers(reads, Blank())


def test_a_caller_that_floods_and_takes_nothing_costs_little(go: Go, kit: Kit):
    async def scenario() -> None:
        async with kit.running(kit.config(server={"client_stall": 1.0})) as gateway:
            loop = asyncio.get_running_loop()
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.setblocking(False)
                await loop.sock_connect(deaf, ("127.0.0.1", gateway.port))
                with suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(1.0):
                        while True:
                            await loop.sock_sendall(deaf, GET * 1000)
                held = [
                    c.transport.get_write_buffer_size() for c in gateway.process.connections.open
                ]
                assert sum(held) < 1 << 20
                assert (await gateway.ask(GET)).status == 200

    go(scenario())


def test_answers_that_nobody_takes_stay_within_the_memory_that_all_share(go: Go, kit: Kit):
    answer = b"x" * (7 << 20)
    most = 16 << 20

    async def scenario() -> None:
        server = {"max_body": 1 << 16, "max_buffered": most}
        async with (
            kit.engine(kit.whole(answer)) as engine,
            kit.running(kit.config([engine.section()], server=server)) as gateway,
        ):
            asked = kit.post(kit.chat())
            callers = [await deaf_caller(gateway.port, asked) for _ in range(20)]
            await kit.until(lambda: gateway.app.buffered_bytes > most)
            assert (await gateway.ask(asked)).status == 429
            await kit.until(lambda: not gateway.app.active or gateway.pool.dispatcher.queued == 0)
            assert gateway.app.buffered_bytes < most + len(callers) * (1 << 20)
            for caller in callers:
                caller.close()
            await gateway.quiet()
            assert (await gateway.ask(asked)).body == answer

    go(scenario())


async def deaf_caller(port: int, data: bytes) -> socket.socket:
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.setblocking(False)
    await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(caller, data)
    return caller
