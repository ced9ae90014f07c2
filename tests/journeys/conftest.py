"""A real gateway process on a loopback port, raw callers before it, engines behind it.

Types for annotations come from here under `TYPE_CHECKING`; the fixtures give the functions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import pytest
import uvloop

from forebay.gateway.config.sections import Config
from forebay.gateway.process import Process
from forebay.gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator

    from tests.conftest import Peer, Upstream

    from forebay.gateway.app import App
    from forebay.gateway.pools import Pool
    from forebay.gateway.telemetry.traces import RequestTrace
    from forebay.policies.contracts import Outcome

T = TypeVar("T")
LIMIT_S = 10.0
CHAT = "/v1/chat/completions"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class Go(Protocol):
    """Runs a coroutine to its end on a loop like production's."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@pytest.fixture
def go() -> Iterator[Go]:
    """Run on uvloop; what the loop reports to its handler fails the test."""
    reported: list[dict[str, Any]] = []

    async def guarded(coroutine: Coroutine[Any, Any, T]) -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: reported.append(c))
        async with asyncio.timeout(100):
            return await coroutine

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        def run_it(coroutine: Coroutine[Any, Any, T], /) -> T:
            return runner.run(guarded(coroutine))

        yield run_it
    assert reported == []


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is awaited here sets no event
            await asyncio.sleep(0.001)


class Answer(NamedTuple):
    """One answer as a caller sees it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """A raw connection to the gateway: any bytes may be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def leave(self) -> None:
        """Go away, at once."""
        self.writer.transport.abort()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of the next answer that is no interim one."""
        while True:
            async with asyncio.timeout(LIMIT_S):
                text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
            status = int(first.split()[1])
            if status >= 200:
                pairs = (line.partition(":") for line in lines)
                return status, {name.lower(): value.strip() for name, _, value in pairs}

    async def answer(self, method: str = "POST") -> Answer:
        """Read a whole answer."""
        status, headers = await self.head()
        async with asyncio.timeout(LIMIT_S):
            return Answer(status, headers, await self._body(headers, method))

    async def _body(self, headers: dict[str, str], method: str) -> bytes:
        if method == "HEAD":
            return b""
        if headers.get("transfer-encoding") != "chunked":
            if "content-length" in headers:
                return await self.reader.readexactly(int(headers["content-length"]))
            return await self.reader.read()
        parts: list[bytes] = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def chunk(self) -> bytes:
        """Read one chunk of an answer; empty at its end."""
        async with asyncio.timeout(LIMIT_S):
            size = int(await self.reader.readline(), 16)
            data = await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        return data

    async def closed(self) -> bytes:
        """Read until the gateway closes; a reset counts as closing."""
        parts: list[bytes] = []
        async with asyncio.timeout(LIMIT_S):
            try:
                while part := await self.reader.read(1 << 16):
                    parts.append(part)
            except ConnectionError:
                pass
        return b"".join(parts)


async def connect(port: int) -> Caller:
    return Caller(*await asyncio.open_connection("127.0.0.1", port))


def post(body: object, path: str = CHAT, headers: str = "", *, version: str = "1.1") -> bytes:
    """Write a POST request; `headers` are whole lines."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}{headers}content-length: {len(raw)}\r\n\r\n".encode("latin-1") + raw


def get(path: str, headers: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode("latin-1")


def chat(text: str = "hello", **members: Any) -> dict[str, Any]:
    """Make the body of a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **members}


class Spy:
    """Stands before the telemetry and keeps what it is told."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.outcomes: list[Outcome] = []
        self.stripped_fields: list[str] = []
        self.refused_retries = 0
        self.moves: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def settled(self, outcome: Outcome, trace: RequestTrace) -> None:
        self.outcomes.append(outcome)
        self._inner.settled(outcome, trace)

    def stripped(self, pool: str, field: str) -> None:
        self.stripped_fields.append(field)
        self._inner.stripped(pool, field)

    def moved(self, pool: str, reason: str) -> None:
        self.moves.append((pool, reason))
        self._inner.moved(pool, reason)

    def retry_refused(self, pool: str) -> None:
        self.refused_retries += 1
        self._inner.retry_refused(pool)


class Records(logging.Handler):
    """Keeps what is logged, as the line that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.setFormatter(logs.JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.lines.append(line)
        if record.levelno >= logging.ERROR:
            self.errors.append(line)


class Gateway:
    """A gateway that runs."""

    def __init__(self, process: Process, records: Records, task: asyncio.Task[int]) -> None:
        self.process = process
        self.records = records
        self.task = task
        self.port = process.port
        self.spy = Spy(process.app.observer)
        process.app.observer = self.spy  # type: ignore[assignment] - a seam of the app

    @property
    def app(self) -> App:
        return self.process.app

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def outcomes(self) -> list[Outcome]:
        return self.spy.outcomes

    @property
    def pool(self) -> Pool:
        return next(iter(self.app.pools.values()))

    async def caller(self) -> Caller:
        return await connect(self.port)

    async def ask(self, data: bytes) -> Answer:
        """Send one request on a connection of its own and read the answer."""
        async with await self.caller() as caller:
            caller.send(data)
            return await caller.answer(data.split(b" ", 1)[0].decode("latin-1"))

    def leaks(self) -> dict[str, int]:
        """Name what is still held; empty when everything was given back."""
        held = {
            "active": len(self.app.active),
            "buffered_bytes": self.app.buffered_bytes,
        }
        for pool in self.app.pools.values():
            dispatcher = pool.dispatcher
            held[f"{pool.name} waiting"] = len(pool.waiting)
            held[f"{pool.name} queued"] = dispatcher.queued
            held[f"{pool.name} queued bytes"] = dispatcher.queued_bytes
            held[f"{pool.name} in flight"] = dispatcher.in_flight
            held[f"{pool.name} released twice"] = dispatcher.released_twice
            for endpoint in pool.endpoints.values():
                held[f"{endpoint.name} in flight"] = endpoint.view.in_flight
                held[f"{endpoint.name} tokens"] = endpoint.view.in_flight_tokens
        return {name: count for name, count in held.items() if count}

    async def quiet(self) -> None:
        """Wait until nothing is held any more."""
        try:
            await until(lambda: not self.leaks())
        except TimeoutError:
            raise AssertionError(f"leaked: {self.leaks()}") from None


def config(endpoints: list[dict[str, Any]] | None = None, **rest: Any) -> Config:
    """Make a configuration: one pool `p` with model `m`, unless told otherwise.

    `server` and `pool` add to those sections; everything else is a top-level section.
    """
    server = {"host": "127.0.0.1", "port": 0, "drain": {"notice": 0.0, "limit": 0.0}}
    server.update(rest.pop("server", {}))
    quiet = {"interval": 3600.0, "load_interval": 3600.0}
    pool = {"name": "p", "models": {"m": "m"}, "health": quiet, "endpoints": endpoints or [sim()]}
    pool.update(rest.pop("pool", {}))
    pools = [{"health": quiet, **section} for section in rest.pop("pools", [pool])]
    telemetry = {"log_requests": True, **rest.pop("telemetry", {})}
    return Config.model_validate(
        {"version": 1, "server": server, "pools": pools, "telemetry": telemetry, **rest}
    )


def sim(name: str = "e0", **settings: Any) -> dict[str, Any]:
    """Make the section of an embedded engine that takes no time."""
    rest = {key: settings.pop(key) for key in ("max_in_flight",) if key in settings}
    return {"name": name, "engine": "sim", "sim": {"profile": "instant", **settings}, **rest}


@asynccontextmanager
async def running(
    settings: Config, *, errors: bool = False, **options: Any
) -> AsyncGenerator[Gateway]:
    """Run a gateway; at the end nothing may be held, and no error be logged unless `errors`."""
    root, listening, records = logging.getLogger(), asyncio.Event(), Records()
    before = root.handlers[:], root.level
    process = Process(settings, banner=lambda _url, _page: listening.set(), **options)
    task = asyncio.create_task(process.run())
    try:
        await asyncio.sleep(0)  # its first step puts handlers of its own in place of all others
        root.addHandler(records)
        waiting = asyncio.create_task(listening.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert listening.is_set(), f"the gateway did not start: {task}"
        gateway = Gateway(process, records, task)
        yield gateway
        if not task.done():
            await gateway.quiet()
    finally:
        if not task.done():
            process.stop()
        await asyncio.wait({task})
        root.handlers[:], root.level = before
    assert task.result() == 0
    if not errors:
        assert records.errors == []


class Script(Protocol):
    """Answers the n-th data request that an engine got."""

    def __call__(self, peer: Peer, request: bytes, number: int, /) -> Awaitable[object]: ...


class Engine:
    """A scripted engine: answers probes by itself and leaves data requests to its script.

    A connection is kept for the next request unless the script returns False.
    """

    def __init__(self, upstream: type[Upstream], script: Script, kind: str) -> None:
        self._script = script
        self._upstream = upstream(self._serve)
        self.kind = kind
        self.requests: list[bytes] = []
        """Data requests, whole."""
        self.control: list[bytes] = []
        self.left = 0
        """Data requests whose connection the gateway closed while the script ran."""

    async def __aenter__(self) -> Self:
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._upstream.__aexit__(*error)

    @property
    def open(self) -> int:
        return self._upstream.open

    @property
    def bodies(self) -> list[bytes]:
        return [request.partition(b"\r\n\r\n")[2] for request in self.requests]

    def section(self, name: str = "e0", **rest: Any) -> dict[str, Any]:
        return {"name": name, "engine": self.kind, "url": self._upstream.url, **rest}

    async def _serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            path = request.split(b" ", 2)[1]
            asked = path == b"/kv_cache_events" or b"tokenize" in path
            if (path.startswith(b"/v1/") and path != b"/v1/models") or asked:
                self.requests.append(request)
                if await self._answer(peer, request) is False:
                    return
            else:
                self.control.append(request)
                known = {b"/v1/models": MODELS, b"/health": b"{}"}.get(path)
                peer.send(whole(known) if known else whole(b"{}", status=404))

    async def _answer(self, peer: Peer, request: bytes) -> object:
        try:
            return await self._script(peer, request, len(self.requests) - 1)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
            raise


def whole(body: bytes | object, *, status: int = 200, headers: bytes = b"") -> bytes:
    """Write a whole answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, headers, len(raw)) + raw


def events_head() -> bytes:
    """Write the head of a chunked stream of events."""
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def chunk(data: bytes) -> bytes:
    """Write one chunk; an empty one ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(text: str, **members: Any) -> bytes:
    """Write one event of a chat stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    said = {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **members}
    return b"data: %b\n\n" % json.dumps(said, separators=(",", ":")).encode()


DONE = b"data: [DONE]\n\n"


def first_waits(free: asyncio.Event, answer: bytes) -> Script:
    """Give the same answer to all, to the first one only when `free` is set: it holds its place."""

    async def script(peer: Peer, _request: bytes, number: int) -> None:
        if number == 0:
            await free.wait()
        peer.send(answer)

    return script


class Kit:
    """What a test of whole requests needs, by name."""

    connect = staticmethod(connect)
    running = staticmethod(running)
    config = staticmethod(config)
    sim = staticmethod(sim)
    post = staticmethod(post)
    get = staticmethod(get)
    chat = staticmethod(chat)
    whole = staticmethod(whole)
    events_head = staticmethod(events_head)
    chunk = staticmethod(chunk)
    delta = staticmethod(delta)
    until = staticmethod(until)
    first_waits = staticmethod(first_waits)
    done = DONE

    def __init__(self, upstream: type[Upstream]) -> None:
        self.upstream = upstream

    def engine(self, script: Script | bytes, *, kind: str = "openai") -> Engine:
        """Make a scripted engine; bytes are its answer to everything."""
        return Engine(self.upstream, says(script) if isinstance(script, bytes) else script, kind)


def says(answer: bytes) -> Script:
    async def script(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(answer)

    return script


@pytest.fixture(scope="session")
def kit(upstream: type[Upstream]) -> Kit:
    return Kit(upstream)


ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"<!-- run -->\n```sh\n(.*?)```", re.DOTALL)


class Page:
    """A page of docs/ with an example of examples/, on other ports than the written ones."""

    def __init__(self, page: str, example: str, written: tuple[int, ...]) -> None:
        self.text = (ROOT / "docs" / page).read_text()
        self.example = (ROOT / "examples" / example).read_text()
        self.commands: list[str] = MARKED.findall(self.text)
        """What is marked to be run, block by block."""
        self.ports = dict(zip(written, free_ports(len(written)), strict=True))
        self._name = example

    def run(self, folder: Path, commands: list[str], *, limit_s: float) -> list[str]:
        """Run commands beside the example; return what each printed."""
        (folder / "examples").mkdir()
        (folder / "examples" / self._name).write_text(self._moved(self.example))
        # Whatever fails, what was started must go: it holds the pipes open.
        script = "set -e\ntrap 'kill $(jobs -p); wait' EXIT\n" + "".join(
            f"{self._moved(each)}\necho '=== block'\n" for each in commands
        )
        *told, _ = _bash(script, folder, limit_s).split("=== block\n")
        return told

    def _moved(self, text: str) -> str:
        written = "|".join(map(str, self.ports))
        return re.sub(written, lambda found: str(self.ports[int(found[0])]), text)


@pytest.fixture
def page() -> type[Page]:
    return Page


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return found


def _bash(script: str, folder: Path, limit_s: float) -> str:
    binaries = str(Path(sys.executable).parent)
    bash = shutil.which("bash")
    assert bash is not None
    process = subprocess.Popen(
        [bash, "-m", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, f"{out}\n{err[-3000:]}"
    return out
