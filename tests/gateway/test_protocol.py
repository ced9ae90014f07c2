"""The server side of HTTP/1.1 without sockets: bytes in, bytes out, and a clock that tests set."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.connections import Connections
from forebay.gateway.messages import Limits, Message, Refusal, Responder
from forebay.gateway.protocol import HIGH_WATER, LINGER, HttpProtocol, Phase
from forebay.gateway.reading import MAX_HEADERS, MAX_URL

if TYPE_CHECKING:
    from collections.abc import Callable


class Pipe(asyncio.Transport):
    """Takes what is written; how much of it the caller has taken is up to the test."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.written = b""
        self.waiting = 0
        self.reading = True
        self.ended = self.closed = self.aborted = False

    def write(self, data: Any) -> None:
        assert not self.ended, "written after the end"
        if not self.closed:
            self.written += bytes(data)

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.waiting


class Guest:
    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.told: list[str] = []

    def caller_left(self) -> None:
        self.told.append("left")

    def caller_slow(self) -> None:
        self.told.append("slow")

    def caller_ready(self) -> None:
        self.told.append("ready")


class Host:
    """Answers /now at once with what it got, keeps the rest as guests."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.bodies: list[bytes] = []
        self.guests: list[Guest] = []
        self.bytes = 0
        self.most = 1 << 30
        self.failing: Callable[[], None] = lambda: None
        self.admitting: Callable[[], None] = lambda: None

    def admit(self, message: Message) -> Refusal | None:
        self.admitting()
        return Refusal(401, b"no") if message.path == "/no" else None

    def serve(self, message: Message, responder: Responder) -> Guest | None:
        self.failing()
        self.messages.append(message)
        self.bodies.append(message.body)
        if message.path == "/now":
            responder.send(200, [(b"x", b"y")], message.body)
            return None
        guest = Guest(responder)
        self.guests.append(guest)
        return guest

    def refuse(self, status: int, message: str, path: str) -> Refusal:
        return Refusal(status, f"{path}|{message}".encode())

    def buffered(self, change: int) -> bool:
        self.bytes += change
        return self.bytes <= self.most


class Bench:
    """One connection, its host, and the time."""

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        self.host = Host()
        self.server = Connections(self.host, Limits(**limits), lambda: self.now)
        self.pipe = Pipe()
        self.protocol = HttpProtocol(self.server)
        self.protocol.connection_made(self.pipe)

    def feed(self, data: bytes) -> Bench:
        if not self.pipe.closed:
            self.protocol.data_received(data)
        return self

    def later(self, seconds: float) -> Bench:
        self.now += seconds
        self.server.sweep(self.now)
        return self

    @property
    def statuses(self) -> list[int]:
        lines = self.pipe.written.split(b"HTTP/1.1 ")[1:]
        return [int(line[:3]) for line in lines]

    def lost(self) -> None:
        self.protocol.connection_lost(None)
        assert self.host.bytes == 0


def ask(path: str = "/now", body: bytes = b"", headers: str = "", version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_a_request_in_single_bytes_is_one_request():
    bench = Bench()
    for byte in ask(body=b"hello"):
        bench.feed(bytes([byte]))
    assert bench.host.bodies == [b"hello"]
    head, _, body = bench.pipe.written.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert [line for line in lines[1:] if not line.startswith(b"date: ")] == [
        b"x: y",
        b"content-length: 5",
    ]
    assert body == b"hello"
    assert bench.protocol.phase == Phase.IDLE
    bench.lost()


def test_pipelined_requests_are_answered_in_order():
    bench = Bench().feed(ask("/wait") + ask("/now", b"second") + ask("/now", b"third"))
    assert bench.statuses == []
    bench.host.guests[0].responder.send(202, [], b"first")
    assert bench.statuses == [202, 200, 200]
    assert bench.pipe.written.index(b"first") < bench.pipe.written.index(b"second")
    bench.lost()


def test_thousands_of_pipelined_requests_do_not_pile_up_on_the_stack():
    bench = Bench().feed(ask("/wait") + ask("/now") * 5000)
    assert not bench.pipe.reading
    bench.host.guests[0].responder.send(202, [], b"")
    assert bench.statuses == [202] + [200] * 5000
    assert bench.pipe.reading
    bench.lost()


def test_a_refused_head_hangs_up_and_nothing_behind_it_is_served():
    long = "content-length: 1000000\r\n"
    data = b"POST /no HTTP/1.1\r\nhost: x\r\n" + long.encode() + b"\r\n" + b"x" * 1_000_000
    bench = Bench().feed(data + ask("/now", b"smuggled"))
    assert bench.statuses == [401]
    assert b"connection: close" in bench.pipe.written
    assert bench.host.messages == []
    bench.feed(ask("/now"))
    assert bench.statuses == [401]
    bench.later(LINGER + 0.1)
    assert bench.pipe.aborted
    bench.lost()


def test_a_refusal_before_100_continue_serves_nothing_that_came_along():
    bench = Bench().feed(ask("/no", b"body", "expect: 100-continue\r\n") + ask("/now"))
    assert bench.statuses == [401]
    assert bench.host.messages == []
    bench.lost()


def test_a_short_refused_body_is_read_and_the_connection_kept():
    bench = Bench().feed(ask("/no", b"body")).feed(ask("/now", b"next"))
    assert bench.statuses == [401, 200]
    assert bench.host.bodies == [b"next"]
    bench.lost()


def test_what_follows_connection_close_is_not_served():
    bench = Bench().feed(ask("/now", b"a", "connection: close\r\n") + ask("/now", b"b"))
    assert bench.statuses == [200]
    assert bench.host.bodies == [b"a"]
    assert bench.pipe.closed
    bench.lost()


def test_bad_bytes_behind_a_request_under_way_wait_for_its_answer():
    bench = Bench().feed(ask("/wait")).feed(b"\x00\x01 garbage\r\n\r\n")
    assert bench.statuses == []
    bench.host.guests[0].responder.send(200, [], b"")
    assert bench.statuses == [200, 400]
    assert bench.pipe.ended
    bench.lost()


def test_expect_is_answered_before_the_body_but_not_to_http_1_0():
    head, _, body = ask(body=b"hi", headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    bench = Bench().feed(head + b"\r\n\r\n")
    assert bench.pipe.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    bench.feed(body)
    assert bench.statuses == [100, 200]
    bench.lost()
    old = Bench().feed(ask(body=b"hi", headers="expect: 100-continue\r\n", version="1.0"))
    assert old.statuses == [200]
    assert old.pipe.closed
    old.lost()


def test_an_unknown_expectation_is_417():
    bench = Bench().feed(ask(headers="expect: 200-ok\r\n"))
    assert bench.statuses == [417]
    bench.lost()


def test_trailers_do_not_become_headers():
    head = b"POST /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    bench = Bench().feed(head + b"2\r\nhi\r\n0\r\nx-forebay-session: t\r\nhost: y\r\n\r\n")
    assert bench.statuses == [200]
    assert bench.host.messages[0].headers == {b"host": b"x", b"transfer-encoding": b"chunked"}
    bench.lost()


@pytest.mark.parametrize("endless", [b"2;x=", b"0\r\nx: "], ids=["extension", "trailer"])
def test_endless_chunk_extensions_and_trailers_are_refused(endless: bytes):
    bench = Bench()
    bench.feed(b"POST /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + endless)
    for _ in range(10):
        bench.feed(b"x" * 10_000)
    assert bench.statuses == [400]
    assert bench.host.messages == []
    bench.lost()


def test_endless_headers_are_refused_before_they_end():
    bench = Bench(max_header=1000).feed(b"GET /now HTTP/1.1\r\nx: ")
    for _ in range(10):
        bench.feed(b"x" * 1000)
    assert bench.statuses == [431]
    bench.lost()


def test_too_much_of_a_head_is_refused():
    many = "".join(f"x-{i}: 1\r\n" for i in range(MAX_HEADERS + 1))
    same = "x: 1\r\n" * (MAX_HEADERS + 2)
    long = "x: " + "y" * 70_000 + "\r\n"
    got = {
        "many": Bench().feed(ask(headers=many)).statuses,
        "repeated": Bench().feed(ask(headers=same)).statuses,
        "long": Bench().feed(ask(headers=long)).statuses,
        "url": Bench().feed(ask("/" + "x" * (MAX_URL + 1))).statuses,
        "body": Bench(max_body=10).feed(ask(body=b"x" * 11)).statuses,
    }
    assert got == {"many": [431], "repeated": [431], "long": [431], "url": [414], "body": [413]}


def test_a_chunked_body_is_cut_off_at_the_limit():
    bench = Bench(max_body=100_000)
    bench.feed(b"POST /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(30):
        bench.feed(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        assert bench.host.bytes <= 100_000
    assert bench.statuses == [413]
    assert bench.host.bytes == 0
    bench.lost()


def test_a_body_past_the_memory_budget_is_429_while_it_is_read():
    bench = Bench()
    bench.host.most = 50_000
    bench.feed(b"POST /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(20):
        bench.feed(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
    assert bench.statuses == [429]
    assert bench.host.bytes == 0
    bench.lost()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("content-encoding: gzip\r\n", 415),
        ("authorization: a\r\nauthorization: b\r\n", 400),
        ("content-type: a\r\ncontent-type: b\r\n", 400),
        ("host: y\r\n", 400),
    ],
)
def test_heads_that_leave_open_what_is_meant_are_refused(headers: str, status: int):
    bench = Bench().feed(ask("/now", headers=headers))
    assert bench.statuses == [status]
    assert bench.pipe.written.partition(b"\r\n\r\n")[2].startswith(b"/now|")
    bench.lost()


def test_a_transfer_encoding_other_than_chunked_is_501():
    head = b"POST /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    bench = Bench().feed(head)
    assert bench.statuses == [501]
    bench.lost()


UPGRADE = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


def test_the_wish_for_another_protocol_is_ignored():
    bench = Bench()
    data = ask("/now", b"hi", UPGRADE) + ask("/now", b"", UPGRADE) + ask("/now", b"last")
    for byte in data:
        bench.feed(bytes([byte]))
    assert bench.statuses == [200] * 3
    assert bench.host.bodies == [b"hi", b"", b"last"]
    bench.feed(data)
    assert bench.host.bodies == [b"hi", b"", b"last"] * 2
    bench.lost()


def test_the_wish_for_another_protocol_is_ignored_in_chunked_requests():
    head = f"POST /now HTTP/1.1\r\nhost: x\r\n{UPGRADE}transfer-encoding: chunked\r\n\r\n".encode()
    bench = Bench().feed(head + b"2\r\nhi\r\n0\r\n\r\n" + ask("/now", b"next"))
    assert bench.statuses == [200, 200]
    assert bench.host.bodies == [b"hi", b"next"]
    bench.lost()


def test_many_wishes_for_another_protocol_are_ignored():
    bench = Bench().feed(ask("/now", b"hi", UPGRADE) * 2000)
    assert bench.host.bodies == [b"hi"] * 2000
    bench.lost()


def test_connect_is_no_tunnel():
    bench = Bench().feed(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + ask("/now", b"next"))
    assert bench.statuses == []
    assert [message.method for message in bench.host.messages] == ["CONNECT"]
    bench.host.guests[0].responder.send(404, [], b"")
    assert bench.statuses == [404, 200]
    bench.lost()


def test_head_requests_get_no_body():
    bench = Bench().feed(b"HEAD /now HTTP/1.1\r\nhost: x\r\n\r\n")
    assert bench.statuses == [200]
    assert bench.pipe.written.endswith(b"content-length: 0\r\n\r\n")
    bench.lost()


def test_http_1_0_gets_a_stream_without_chunks_that_ends_with_the_connection():
    bench = Bench().feed(ask("/wait", version="1.0", headers="connection: keep-alive\r\n"))
    responder = bench.host.guests[0].responder
    responder.start(200, [], b"one")
    responder.write(b"two")
    responder.finish(b"three")
    assert bench.pipe.written.endswith(b"connection: close\r\n\r\nonetwothree")
    assert b"transfer-encoding" not in bench.pipe.written
    assert bench.pipe.closed
    bench.lost()


def test_http_1_0_may_keep_a_connection():
    bench = Bench().feed(ask("/now", b"a", "connection: keep-alive\r\n", "1.0"))
    assert b"connection: keep-alive" in bench.pipe.written
    assert bench.protocol.phase == Phase.IDLE
    bench.lost()


def test_a_guest_hears_of_a_slow_caller_and_of_its_leaving():
    bench = Bench().feed(ask("/wait", b"body"))
    guest = bench.host.guests[0]
    bench.protocol.pause_writing()
    bench.protocol.resume_writing()
    bench.lost()
    assert guest.told == ["slow", "ready", "left"]


def test_what_a_slow_caller_asks_next_waits_until_it_takes_bytes_again():
    bench = Bench()
    bench.protocol.pause_writing()
    bench.feed(ask("/wait"))
    assert bench.host.guests == []
    assert not bench.pipe.reading
    assert bench.protocol.phase == Phase.ANSWER
    bench.protocol.resume_writing()
    assert bench.host.guests[0].told == []
    assert bench.pipe.reading
    bench.lost()


def test_forgetting_the_body_gives_its_memory_back_once():
    bench = Bench().feed(ask("/wait", b"x" * 100))
    assert bench.host.bytes == 100
    bench.host.guests[0].responder.forget_body()
    assert bench.host.bytes == 0
    bench.host.guests[0].responder.send(200, [], b"")
    bench.lost()


# -- time ------------------------------------------------------------------------------------------


def test_slow_heads_and_bodies_are_408_and_idle_connections_closed():
    head = Bench(header_timeout=10.0).feed(b"POST /no")
    assert head.later(9.0).statuses == []
    assert head.later(2.0).statuses == [408]
    body = Bench(body_timeout=30.0).feed(ask(body=b"x" * 10)[:-5])
    assert body.later(29.0).feed(b"x").later(29.0).statuses == []
    assert body.later(2.0).statuses == [408]
    idle = Bench(keep_alive=75.0).feed(ask())
    assert not idle.later(74.0).pipe.closed
    assert idle.later(2.0).pipe.closed
    for bench in (head, body, idle):
        bench.lost()


def test_an_answer_under_way_has_no_time_limit_here():
    bench = Bench().feed(ask("/wait")).later(10_000.0)
    assert not bench.pipe.closed
    bench.lost()


def test_a_caller_that_takes_nothing_is_broken_off():
    bench = Bench(client_stall=30.0).feed(ask("/wait"))
    bench.host.guests[0].responder.start(200, [], b"x")
    bench.pipe.waiting = HIGH_WATER + 1
    bench.protocol.pause_writing()
    assert not bench.later(29.0).pipe.aborted
    bench.pipe.waiting = HIGH_WATER
    assert not bench.later(29.0).pipe.aborted
    assert bench.later(31.0).pipe.aborted
    bench.lost()


def test_a_slow_caller_of_a_last_answer_may_take_its_time():
    bench = Bench(client_stall=30.0).feed(ask("/wait", headers="connection: close\r\n"))
    bench.pipe.waiting = 1000
    bench.host.guests[0].responder.send(200, [], b"x" * 1000)
    assert bench.pipe.closed
    for left in range(900, 0, -100):
        bench.pipe.waiting = left
        assert not bench.later(20.0).pipe.aborted
    assert bench.later(31.0).pipe.aborted
    bench.lost()


def test_draining_says_close_and_closes_what_is_idle():
    bench, other = Bench(), Bench()
    bench.feed(ask())
    assert b"connection: close" not in bench.pipe.written
    bench.server.closing = True
    bench.feed(ask())
    assert b"connection: close" in bench.pipe.written
    assert bench.pipe.closed
    since = other.server.clock()
    other.server.close_idle(since - 1.0)
    assert not other.pipe.closed
    other.server.close_idle(since)
    assert other.pipe.closed
    for each in (bench, other):
        each.lost()


# -- what must not happen --------------------------------------------------------------------------


def broken() -> None:
    raise RuntimeError("a bug")


def test_a_bug_is_a_500_and_an_error_line_not_the_callers_fault(caplog: pytest.LogCaptureFixture):
    bench = Bench()
    bench.host.failing = broken
    bench.feed(ask())
    assert bench.statuses == [500]
    other = Bench()
    other.host.admitting = broken
    other.feed(ask())
    assert other.statuses == [500]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        RuntimeError,
        RuntimeError,
    ]
    bench.lost()
    other.lost()


def test_a_bug_in_a_pipelined_request_does_not_hang_the_connection():
    bench = Bench().feed(ask("/wait") + ask("/wait") + ask("/now"))
    bench.host.failing = broken
    bench.host.guests[0].responder.send(200, [], b"")
    assert bench.statuses == [200, 500, 500]
    bench.lost()
