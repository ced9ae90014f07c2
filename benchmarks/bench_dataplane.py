# ruff: noqa: D102 - the methods are those of a transport, an opener and a stream
"""What one request and one chunk cost in forebay's own Python, without a socket.

    python benchmarks/bench_dataplane.py [--rounds 60] [--profile SCENE]

Everything between the two sockets runs as it does live: server protocol, key, intake, queue,
placement, translation, relay, metrics and request log. Only the caller's transport and the
engines' openers are fakes that do nothing, so what is told here is what remains when the system
calls are taken away. Seven scenes:

    whole       a whole answer; the head is one that was seen before
    new head    the same, with an x-request-id of its own, so that it is parsed
    stream      a streamed answer of one chunk, head and end included
    chunk       one further chunk of a stream, one a read
    bulk        one further chunk of a stream, 64 a read
    distinct    as `whole`, with 20,000 prompts in turn
    prefixes    the same, placed by prefix

Told is the CPU time of the fastest round, in microseconds: on a shared machine the others measure
the neighbours.
The batches of metrics and log lines are part of it, the writing of the lines is not.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import time
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

from forebay.gateway.app import App
from forebay.gateway.assembly import Assembly
from forebay.gateway.config import load
from forebay.gateway.connections import Connections
from forebay.gateway.keys import Keys
from forebay.gateway.local import LocalAnswers
from forebay.gateway.messages import Limits
from forebay.gateway.meter import Unmetered
from forebay.gateway.protocol import HttpProtocol
from forebay.gateway.telemetry.access_log import AccessLog
from forebay.gateway.telemetry.labels import LabelSpace
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.observer import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.adapters.base import Headers, Sink

KEY = "fb_00000000_benchmark"
CONFIG = f"""\
version: 1
pools:
  - name: tiny
    models: [tiny]
    endpoints:
      - {{name: a, engine: vllm, url: "http://127.0.0.1:1", max_in_flight: 64}}
      - {{name: b, engine: vllm, url: "http://127.0.0.1:2", max_in_flight: 64}}
tenants:
  - {{name: acme, keys: ["sha256:{sha256(KEY.encode()).hexdigest()}"]}}
"""
PROMPT = "The quick brown fox jumps over the lazy dog. " * 40
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1795980609,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "lorem ipsum " * 22},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 500, "completion_tokens": 60, "total_tokens": 560},
    }
).encode()
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1795980609,"model":"tiny",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
END = b"data: [DONE]\n\n"
JSON: Headers = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(ANSWER)),
]
EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]
BATCH = 200
DISTINCT = 20_000
BULK = 64


class Caller(asyncio.Transport):
    """Takes all bytes at once and forgets them."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes = 0

    def write(self, data: Any) -> None:  # noqa: ARG002 - forgotten
        self.writes += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class Answering:
    """One answer under way: a `Stream` of which nothing is read."""

    sent = True

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Engines:
    """Takes requests and keeps their sinks: an `Opener` for all endpoints."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def open(
        self,
        method: str,  # noqa: ARG002 - Opener's signature
        path: str,  # noqa: ARG002 - likewise
        headers: Sequence[tuple[str, str]],  # noqa: ARG002 - likewise
        body: bytes,  # noqa: ARG002 - likewise
        sink: Sink,
    ) -> Answering:
        self.sinks.append(sink)
        return Answering()

    def close(self) -> None: ...


class NoLines:
    """Takes the lines of the request log and forgets them."""

    def put(self, lines: bytes) -> None: ...


class Bench:
    """A gateway between one caller's connection and its engines."""

    def __init__(self, text: str = CONFIG) -> None:
        config, now = load.read(text.encode(), {}), time.monotonic
        labels = LabelSpace.from_config(config)
        metrics = Metrics(labels)
        self.telemetry = Telemetry(metrics, AccessLog(NoLines(), labels), None, sample=0)
        self.engines, self.caller = Engines(), Caller()
        self.assembly = Assembly(
            now=now, metrics=metrics, changed=self.telemetry.transition, control=lambda _: None
        )
        built = self.assembly.build(config)
        for _, _, endpoints in built:
            for endpoint in endpoints:
                endpoint.opener = self.engines
        self.assembly.take(built)
        app = App(
            config,
            keys=Keys(config.tenants),
            pools=self.assembly.pools,
            meter=Unmetered(),
            observer=self.telemetry,
            local=LocalAnswers(snapshot=_nothing, scrape=None, created=0),
            now=now,
            abort=lambda _endpoint, _request: None,
        )
        self.connection = HttpProtocol(Connections(app, Limits(), now))
        self.connection.connection_made(self.caller)

    def whole(self) -> Callable[[int], None]:
        """Answer requests whose head is known."""
        request = _request(stream=False)

        def run(times: int) -> None:
            for _ in range(times):
                self.connection.data_received(request)
                self._answer_whole()

        return run

    def distinct(self) -> Callable[[int], None]:
        """Answer requests whose prompts are all different."""
        whole, turn = _request(stream=False), count()
        requests = [whole.replace(b"The quick", b"%09d" % n, 1) for n in range(DISTINCT)]

        def run(times: int) -> None:
            for _ in range(times):
                self.connection.data_received(requests[next(turn) % DISTINCT])
                self._answer_whole()

        return run

    def new_head(self) -> Callable[[int], None]:
        """Answer requests whose heads are all different."""
        requests = [_request(stream=False, extra=f"x-request-id: {i}\r\n") for i in range(BATCH)]

        def run(times: int) -> None:
            for i in range(times):
                self.connection.data_received(requests[i])
                self._answer_whole()

        return run

    def stream(self) -> Callable[[int], None]:
        """Answer requests with short streams."""
        request = _request(stream=True)

        def run(times: int) -> None:
            for _ in range(times):
                self.connection.data_received(request)
                sink = self.engines.sinks.pop()
                sink.on_head(200, EVENTS)
                sink.on_data(CHUNK)
                sink.on_data(END)
                sink.on_end()

        return run

    def chunks(self, at_once: int) -> Callable[[int], None]:
        """Relay further chunks of one stream that never ends, so many a read."""
        self.connection.data_received(_request(stream=True))
        sink, data = self.engines.sinks.pop(), CHUNK * at_once
        sink.on_head(200, EVENTS)
        sink.on_data(CHUNK)

        def run(times: int) -> None:
            for _ in range(times):
                sink.on_data(data)

        return run

    def _answer_whole(self) -> None:
        sink = self.engines.sinks.pop()
        sink.on_head(200, JSON)
        sink.on_data(ANSWER)
        sink.on_end()


SCENES: dict[str, tuple[Callable[[Bench], Callable[[int], None]], int]] = {
    "whole": (Bench.whole, 1),
    "new head": (Bench.new_head, 1),
    "stream": (Bench.stream, 1),
    "chunk": (lambda bench: bench.chunks(1), 1),
    "bulk": (lambda bench: bench.chunks(BULK), BULK),
    "distinct": (Bench.distinct, 1),
    "prefixes": (Bench.distinct, 1),
}
"""What is run, and how many of what is told are in one run of it."""


def _nothing() -> Any:
    raise AssertionError("nobody asks for the status here")


def _request(*, stream: bool, extra: str = "") -> bytes:
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "hello"}]
    said = {"model": "tiny", "messages": messages, "max_tokens": 60, "stream": stream}
    body = json.dumps(said).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"authorization: Bearer {KEY}\r\n{extra}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def measure(scene: str, rounds: int, *, profile: bool = False) -> float:
    """Return the CPU microseconds of one request or chunk, in the fastest round."""
    prepare, parts = SCENES[scene]
    placed = "    prefix: {mode: auto}\n    endpoints:"
    bench = Bench(CONFIG.replace("    endpoints:", placed) if scene == "prefixes" else CONFIG)
    run = prepare(bench)
    run(BATCH)
    assert bench.caller.writes >= BATCH, "not every request was answered"
    bench.telemetry.flush()
    gc.collect()
    gc.freeze()
    if profile:
        with cProfile.Profile() as profiler:
            run(BATCH)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        run(BATCH)
        bench.telemetry.flush()
        best = min(best, time.thread_time() - started)
    await bench.assembly.close()
    return best / BATCH / parts * 1e6


def main() -> None:
    """Measure all scenes, or profile one."""
    parser = argparse.ArgumentParser(description="cost of a request and a chunk, without sockets")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--profile", choices=list(SCENES), help="where one scene's time goes")
    arguments = parser.parse_args()
    for scene in [arguments.profile] if arguments.profile else SCENES:
        profile = arguments.profile is not None
        cost = asyncio.run(measure(scene, arguments.rounds, profile=profile))
        print(f"{scene:10} {cost:7.2f} us")


if __name__ == "__main__":
    main()
