#!/usr/bin/env python3
"""How long a request with a large picture holds up everybody else's: pauses of the event loop.

    python benchmarks/bench_long_bodies.py [MB ...] [--requests 9]

The gateway runs in this process on core 0, beside a task that sleeps 1 ms again and again and notes
how much later it woke; caller and engine (the embedded one, on a port) run on core 1. Of each
request the longest pause counts.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvloop

from forebay.gateway.config import load
from forebay.gateway.process import Process

if TYPE_CHECKING:
    from collections.abc import Generator

ENGINE = 8392
PAUSE = 0.3
CONFIG = f"""
version: 1
server: {{host: 127.0.0.1, port: 0, max_body: 64MiB}}
telemetry: {{log_level: warning, log_requests: false}}
pools:
  - name: tiny
    models: [tiny]
    endpoints: [{{name: a, engine: vllm, url: "http://127.0.0.1:{ENGINE}"}}]
"""


def body(megabytes: float) -> bytes:
    """Return a question about a picture, of so many bytes in base64."""
    picture = base64.b64encode(os.urandom(int(megabytes * 750_000))).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    message = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}
    return json.dumps({"model": "tiny", "messages": [message], "max_tokens": 2}).encode()


def ask(url: str, megabytes: float, requests: int) -> None:
    """Ask, with pauses, and print when each request began and ended: this is the caller."""
    headers = {"content-type": "application/json"}
    for _ in range(requests):
        question = urllib.request.Request(f"{url}/v1/chat/completions", body(megabytes), headers)
        time.sleep(PAUSE)
        begun = time.perf_counter()
        with urllib.request.urlopen(question) as answer:
            answer.read()
        print(begun, time.perf_counter(), flush=True)


@contextmanager
def engine() -> Generator[None]:
    """Run the engine, on core 1."""
    command = ["taskset", "-c", "1", sys.executable, "-m", "forebay", "engine", "sim"]
    command += ["--port", str(ENGINE), "--model", "tiny"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{ENGINE}/health"):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


async def watch(late: list[tuple[float, float]]) -> None:
    """Note when the loop came back, and how late."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        late.append((now, now - before - 0.001))


async def measure(sizes: list[float], requests: int) -> None:
    """Run the gateway, have it asked, and print."""
    ready = asyncio.get_running_loop().create_future()
    process = Process(load.read(CONFIG, {}), banner=lambda url, _page: ready.set_result(url))
    running = asyncio.create_task(process.run())
    url = await ready
    late: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch(late))
    await asyncio.sleep(1.0)  # until the engine is up
    print("| MB | longest pause, median ms | worst ms | request, median ms |\n|---|---|---|---|")
    for size in sizes:
        late.clear()
        caller = await asyncio.create_subprocess_exec(
            *("taskset", "-c", "1", sys.executable, __file__, "--ask", url),
            *(str(size), "--requests", str(requests)),
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await caller.communicate()
        times = [tuple(map(float, line.split())) for line in told.splitlines()]
        pauses = [max(by for at, by in late if a <= at <= b + 0.05) * 1e3 for a, b in times]
        took = statistics.median(b - a for a, b in times) * 1e3
        print(f"| {size:g} | {statistics.median(pauses):.1f} | {max(pauses):.1f} | {took:.0f} |")
    watching.cancel()
    process.stop()
    await running


def main() -> int:
    """Measure, or ask."""
    parser: Any = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("megabytes", nargs="*", type=float, default=[1.0, 5.0, 20.0])
    parser.add_argument("--requests", type=int, default=9, help="of each size")
    parser.add_argument("--ask", metavar="URL", help="be the caller")
    arguments = parser.parse_args()
    if arguments.ask is not None:
        ask(arguments.ask, arguments.megabytes[0], arguments.requests)
        return 0
    os.sched_setaffinity(0, {0})
    with engine():
        uvloop.run(measure(arguments.megabytes, arguments.requests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
