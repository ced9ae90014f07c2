"""One line for each request: what it says, what it never says, and a reader that is too slow."""

from __future__ import annotations

import dataclasses
import json
import os
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

from forebay.gateway.telemetry import access_log
from forebay.gateway.telemetry.access_log import AccessLog
from forebay.gateway.telemetry.labels import LabelSpace, PoolLabels
from forebay.gateway.telemetry.writer import LineWriter
from forebay.policies.contracts import Finish, Outcome, Route

SPACE = LabelSpace({"llama": PoolLabels(frozenset({"v0"}), frozenset({"m"}))}, frozenset({"acme"}))
DONE = Outcome(
    request_id="0af7651916cd43dd",
    pool="llama",
    route=Route.CHAT,
    tenant="acme",
    model="m",
    endpoint="v0",
    status=200,
    stream=True,
    attempts=2,
    received=100.0,
    placed=100.25,
    first_byte=100.5,
    first_token=100.75,
    last_token=102.0,
    ended=103.0,
    prompt_tokens=30,
    cached_tokens=None,
    output_tokens=5,
    finish_reason="stop",
    bytes_in=400,
    bytes_out=900,
    trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


class Kept:
    """Keeps the lines."""

    def __init__(self) -> None:
        self.data = b""
        self.puts = 0

    def put(self, lines: bytes) -> None:
        self.data += lines
        self.puts += 1

    @property
    def lines(self) -> list[dict[str, Any]]:
        assert not self.data or self.data.endswith(b"\n")
        return [json.loads(line) for line in self.data.splitlines()]


def logged(*outcomes: Outcome) -> Kept:
    kept = Kept()
    log = AccessLog(kept, SPACE, clock=lambda: 103.0, wall=lambda: 1_700_000_000.5)
    for outcome in outcomes:
        log.add(outcome)
    log.flush()
    return kept


def test_a_request_is_one_line_with_its_names_counts_and_times():
    assert logged(DONE).lines == [
        {
            "time": "2023-11-14T22:13:20.500Z",
            "level": "info",
            "event": "request",
            "request_id": "0af7651916cd43dd",
            "pool": "llama",
            "route": "/v1/chat/completions",
            "endpoint": "v0",
            "tenant": "acme",
            "model": "m",
            "finish": "completed",
            "finish_reason": "stop",
            "error": "",
            "status": 200,
            "stream": True,
            "attempts": 2,
            "queue_wait_s": 0.25,
            "ttft_s": 0.75,
            "e2e_s": 3.0,
            "prompt_tokens": 30,
            "cached_tokens": None,
            "output_tokens": 5,
            "bytes_in": 400,
            "bytes_out": 900,
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
        }
    ]


def test_a_callers_own_id_stands_beside_the_one_that_engines_are_told():
    (line,) = logged(replace(DONE, request_id="mine", engine_id="0af7651916cd")).lines
    assert (line["request_id"], line["engine_request_id"]) == ("mine", "0af7651916cd")


def test_a_request_that_was_never_placed_has_no_times_for_it():
    refused = Outcome(
        "r", "", Route.CHAT, "", status=429, finish=Finish.REJECTED, error="overloaded"
    )
    (line,) = logged(refused).lines
    shown = ("endpoint", "finish", "status", "error", "queue_wait_s", "ttft_s", "stream")
    assert [line[name] for name in shown] == ["", "rejected", 429, "overloaded", None, None, False]
    assert "trace_id" not in line


def test_lines_of_one_turn_are_handed_over_together():
    kept = Kept()
    log = AccessLog(kept, SPACE)
    for _ in range(5):
        log.add(DONE)
    log.flush()
    log.flush()
    assert (kept.puts, len(kept.lines)) == (1, 5)


def test_dates_follow_from_second_to_second():
    kept = Kept()
    now = [0.0]
    log = AccessLog(kept, SPACE, clock=lambda: 0.0, wall=lambda: now[0])
    for now[0] in (59.999, 60.0, 59.25):
        log.add(replace(DONE, ended=0.0))
        log.flush()
    times = [line["time"] for line in kept.lines]
    assert times == [f"1970-01-01T00:{t}Z" for t in ("00:59.999", "01:00.000", "00:59.250")]


HOSTILE = (
    *('a"b\\c', "two\nlines", "\x1b[31mred", "\u2028", "\ud800", "\x00", "é漢🎈", "x" * 100_000),
    *("{}", "tell me a secret", "0af7651916cd43dd8448eb211c80319c-", "sk-canary key", "a" * 65),
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_caller_or_an_engine_is_logged(text: str):
    names = Outcome(text, text, text, text, text, text, error=text, finish_reason=text)
    (line,) = logged(replace(names, trace=f"00-{text}")).lines
    assert {name: line[name] for name in ("request_id", "error", "finish_reason")} == dict.fromkeys(
        ("request_id", "error", "finish_reason"), "other" if text not in CODES else text
    )
    shown = ("pool", "route", "endpoint", "tenant", "model")
    assert [line[name] for name in shown] == ["other"] * 5
    assert line["trace_id"] in {"", text[:32]}


CODES = ("0af7651916cd43dd8448eb211c80319c-",)
"""Of HOSTILE: what looks like an id or a code, and is said where those are expected."""


def test_an_error_is_told_by_its_code():
    refused = replace(DONE, error="model_not_found")
    leaky = replace(DONE, error="no model 'canary'")
    assert [line["error"] for line in logged(refused, leaky).lines] == ["model_not_found", "other"]


def test_a_reload_brings_new_names():
    kept = Kept()
    log = AccessLog(kept, SPACE)
    for tenants in (frozenset({"new"}), frozenset[str]()):
        log.relabel(dataclasses.replace(SPACE, tenants=tenants))
        log.add(replace(DONE, tenant="new"))
        log.flush()
    assert [line["tenant"] for line in kept.lines] == ["new", "other"]


def test_names_without_end_do_not_grow_memory():
    kept = Kept()
    log = AccessLog(kept, SPACE)
    for n in range(access_log.MAX_CACHED + 100):
        log.add(replace(DONE, tenant=f"made-up-{n}"))
    log.flush()
    # No public number shows what is remembered.
    assert len(log._names) == access_log.MAX_CACHED  # pyright: ignore[reportPrivateUsage] - its bound shows nowhere else
    assert len(kept.lines) == access_log.MAX_CACHED + 100


def test_the_writer_writes_lines_in_order():
    read, write = os.pipe()
    writer = LineWriter(write)
    for n in range(100):
        writer.put(f"{n}\n".encode())
    writer.close()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read().split() == [str(n).encode() for n in range(100)]


class SlowReader:
    """A descriptor that takes nothing until it is let."""

    def __init__(self) -> None:
        self.reached = Event()
        self.let = Event()
        self.data = b""

    def write(self, _fd: int, data: bytes) -> int:
        self.reached.set()
        self.let.wait()
        taken = data[:7]
        self.data += taken
        return len(taken)


def test_a_blocked_reader_never_blocks_who_logs_and_what_is_lost_is_counted():
    reader = SlowReader()
    writer = LineWriter(1, max_waiting=20, write=reader.write)
    writer.put(b"first line\n")
    reader.reached.wait()
    writer.put(b"second\n")
    writer.put(b"lost\nlost\n")
    writer.put(b"lost too\n")
    assert writer.dropped == 3
    reader.let.set()
    writer.close()
    assert reader.data.splitlines() == [
        b"first line",
        b'{"level":"warning","event":"log lines dropped","lines":3}',
        b"second",
    ]


def test_there_is_room_again_after_a_slow_reader_came_back():
    reader = SlowReader()
    writer = LineWriter(1, max_waiting=20, write=reader.write)
    reader.let.set()
    for _ in range(3):
        reader.reached.clear()
        writer.put(b"nineteen characters\n")
        reader.reached.wait()
        while writer.waiting:
            pass
    writer.close()
    assert (writer.dropped, reader.data) == (0, b"nineteen characters\n" * 3)


def test_a_reader_that_is_gone_is_survived_and_counted():
    read, write = os.pipe()
    os.close(read)
    writer = LineWriter(write)
    writer.put(b"nobody\nhears\n")
    writer.close()
    os.close(write)
    assert writer.dropped == 2


def test_a_descriptor_that_does_not_block_is_waited_for():
    tries = iter([BlockingIOError(), BlockingIOError()])
    read, write = os.pipe()

    def reluctant(fd: int, data: bytes) -> int:
        for error in tries:
            raise error
        return os.write(fd, data)

    writer = LineWriter(write, write=reluctant)
    writer.put(b"in the end\n")
    writer.close()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert (writer.dropped, pipe.read()) == (0, b"in the end\n")


def test_lines_after_the_end_are_counted_as_lost():
    writer = LineWriter(1, write=lambda _fd, data: len(data))
    writer.close()
    writer.put(b"late\n")
    assert writer.dropped == 1
