#!/usr/bin/env python3
"""Many paced streams at once: what the gateway adds to each chunk, and what it holds in memory.

    python benchmarks/bench_streams.py [--streams 2000] [--rate 20] [--seconds 20] [--json]

Starts a small upstream and the clients in this process (pin it to core 1) and `forebay serve` on
core 0. Each chunk carries the time it was written, so its way is measured itself, through the
gateway and directly; both ends share one clock. Loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

UPSTREAM, GATEWAY = 8211, 8392
CONFIG = """\
version: 1
server: {{host: 127.0.0.1, port: {gateway}, drain: {{notice: 0s, limit: 1s}}}}
pools:
  - name: tiny
    models: [tiny]
    endpoints:
      - {{name: a, engine: openai, url: "http://127.0.0.1:{upstream}", max_in_flight: 10000}}
"""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny","choices":'
    b'[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"t":%d}\n\n'
)


class Upstream(asyncio.Protocol):
    """Streams chunks at a fixed rate, each with the time it was written."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] - as TCP has it

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.buffer += data
        if b"GET " in self.buffer[:4]:
            self.buffer = b""
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            self.transport.write(head % len(MODELS) + MODELS)
        elif self.buffer.endswith(b"}"):
            self.buffer = b""
            self.transport.write(HEAD)
            self.left = int(self.arguments.rate * self.arguments.seconds)
            self.loop = asyncio.get_running_loop()
            self.next = self.loop.time()
            self.send()

    def send(self) -> None:
        """Write one chunk and plan the next."""
        if self.transport.is_closing():
            return
        if not self.left:
            self.transport.write(DONE)
            return
        self.left -= 1
        event = EVENT % time.perf_counter_ns()
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.next += 1 / self.arguments.rate
        self.loop.call_at(self.next, self.send)


class Client(asyncio.Protocol):
    """Asks for one stream and notes how long each chunk was on its way."""

    def __init__(self, delays: list[int], done: asyncio.Future[bool]) -> None:
        self.delays = delays
        self.done = done
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] - as TCP has it
        body = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true}'
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        now = time.perf_counter_ns()
        parts = (self.tail + data).split(b'"t":')
        for part in parts[1:]:
            number = part.partition(b"}")
            if number[1]:
                self.delays.append(now - int(number[0]))
        last = parts[-1]
        self.tail = b'"t":' + last if len(parts) > 1 and b"}" not in last else data[-4:]
        if b"[DONE]" in data and not self.done.done():
            self.done.set_result(True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See asyncio.Protocol."""
        if not self.done.done():
            self.done.set_result(False)


async def run_streams(port: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all streams to one port; starts are spread over two seconds."""
    loop = asyncio.get_running_loop()
    delays: list[int] = []
    ends: list[asyncio.Future[bool]] = []
    for _ in range(arguments.streams):
        end = loop.create_future()
        ends.append(end)
        await loop.create_connection(lambda e=end: Client(delays, e), "127.0.0.1", port)
        await asyncio.sleep(2 / arguments.streams)
    whole = await asyncio.gather(*ends)
    delays.sort()
    return {
        "streams": arguments.streams,
        "whole": sum(whole),
        "chunks": len(delays),
        "p50_ms": round(delays[len(delays) // 2] / 1e6, 3),
        "p99_ms": round(delays[len(delays) * 99 // 100] / 1e6, 3),
    }


def usage(pid: int) -> tuple[float, float]:
    """Return CPU seconds and peak RSS in MB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(
        peak.split()[1]
    ) / 1024


async def measure(arguments: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Measure directly, then through the gateway."""
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Upstream(arguments), "127.0.0.1", UPSTREAM, backlog=4096)
    await asyncio.sleep(2)
    direct = await run_streams(UPSTREAM, arguments)
    before, _ = usage(pid)
    through = await run_streams(GATEWAY, arguments)
    after, peak = usage(pid)
    return {
        "direct": direct,
        "gateway": through,
        "added_p50_ms": round(through["p50_ms"] - direct["p50_ms"], 3),
        "added_p99_ms": round(through["p99_ms"] - direct["p99_ms"], 3),
        "cpu_us_per_chunk": round((after - before) / max(1, through["chunks"]) * 1e6, 2),
        "peak_rss_mb": round(peak),
    }


def main() -> int:
    """Start the gateway, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=20, help="chunks a second and stream")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(CONFIG.format(gateway=GATEWAY, upstream=UPSTREAM))
        file.flush()
        forebay = str(Path(sys.executable).with_name("forebay"))
        gateway = subprocess.Popen(
            ["taskset", "-c", "0", forebay, "serve", "-c", file.name], stderr=subprocess.DEVNULL
        )
        try:
            print(json.dumps(uvloop.run(measure(arguments, gateway.pid)), indent=1))
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
