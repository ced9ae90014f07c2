"""SIGTERM drains, SIGINT twice hurries, SIGHUP reloads: told to a real process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.journeys.conftest import Caller, Go, Kit

CONFIG = """
version: 1
server: {{host: 127.0.0.1, port: 0, drain: {{notice: {notice}, limit: {limit}}}}}
pools:
  - name: p
    models: [m]
    {pool}
    endpoints:
{endpoints}
"""
SLOW = "{name: e0, engine: sim, max_in_flight: 1, sim: {profile: demo}}"


def written(*endpoints: str, notice: str = "0s", limit: str = "10s", pool: str = "") -> str:
    lines = "\n".join(f"      - {endpoint}" for endpoint in endpoints or (SLOW,))
    return CONFIG.format(notice=notice, limit=limit, endpoints=lines, pool=pool)


class Served:
    """A `forebay serve` process and what it logs."""

    def __init__(self, process: asyncio.subprocess.Process, path: Path) -> None:
        self._process = process
        self._path = path
        self.lines: list[dict[str, Any]] = []
        self._logged = asyncio.Condition()
        self.port = 0
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            async with self._logged:
                self.lines.append(json.loads(line))
                self._logged.notify_all()

    async def event(self, name: str, after: int = 0) -> dict[str, Any]:
        """Wait for a log line of this event, past the first `after` lines."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines[after:] if line["event"] == name]

        async with self._logged, asyncio.timeout(20):
            await self._logged.wait_for(found)
        return found()[0]

    def tell(self, number: signal.Signals) -> int:
        """Send a signal; return how many lines had been logged before."""
        logged = len(self.lines)
        os.kill(self._process.pid, number)
        return logged

    async def rewrite(self, text: str) -> int:
        logged = len(self.lines)
        self._path.write_text(text)
        self.tell(signal.SIGHUP)
        return logged

    async def ended(self) -> int:
        async with asyncio.timeout(20):
            return await self._process.wait()


@asynccontextmanager
async def serving(path: Path, text: str) -> AsyncGenerator[Served]:
    path.write_text(text)  # noqa: ASYNC240 - a few bytes
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", "serve", "-c", str(path), stderr=asyncio.subprocess.PIPE
    )
    served = Served(process, path)
    try:
        served.port = (await served.event("listening"))["port"]
        yield served
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await served.reading
    errors = [line for line in served.lines if line["level"] == "error"]
    assert errors == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "forebay.yaml"


async def ready(kit: Kit, port: int) -> tuple[int, dict[str, Any]]:
    async with await kit.connect(port) as caller:
        caller.send(kit.get("/readyz"))
        answer = await caller.answer()
        return answer.status, answer.json


async def streaming(kit: Kit, port: int, tokens: int) -> Caller:
    """Begin a stream that takes about 15 ms a token."""
    caller = await kit.connect(port)
    caller.send(kit.post(kit.chat(stream=True, sim={"output_tokens": tokens})))
    status, _ = await caller.head()
    assert status == 200
    return caller


async def rest(caller: Caller) -> bytes:
    parts: list[bytes] = []
    while part := await caller.chunk():
        parts.append(part)
    caller.leave()
    return b"".join(parts)


def test_a_drain_gives_notice_then_stops_listening_and_lets_running_ones_end(
    go: Go, kit: Kit, file: Path
):
    async def main() -> None:
        async with serving(file, written(notice="1s")) as served:
            running, idle = await streaming(kit, served.port, 100), await kit.connect(served.port)
            idle.send(kit.get("/healthz"))
            assert "connection" not in (await idle.answer()).headers
            served.tell(signal.SIGTERM)
            await served.event("draining")
            status, said = await ready(kit, served.port)
            assert (status, said["ready"], said["draining"]) == (503, False, True)
            idle.send(kit.get("/healthz"))
            answer = await idle.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await idle.closed() == b""
            idle.leave()
            late = await kit.connect(served.port)
            late.send(kit.post(kit.chat(sim={"output_tokens": 1})))  # waits for the running one
            body = await rest(running)
            assert body.endswith(kit.done)
            assert (await late.answer()).status == 200
            late.leave()
            assert await served.ended() == 0
            with pytest.raises(ConnectionRefusedError):
                await kit.connect(served.port)

    go(main())


def test_what_the_drain_limit_leaves_gets_an_error(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(notice="0s", limit="0.3s")) as served:
            running, queued = (
                await streaming(kit, served.port, 5000),
                await kit.connect(served.port),
            )
            queued.send(kit.post(kit.chat()))
            await waits(kit, served.port)
            served.tell(signal.SIGTERM)
            answer = await queued.answer()
            assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
            assert answer.headers["connection"] == "close"
            queued.leave()
            body = await rest(running)
            error = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))
            assert error["error"]["code"] == "draining"
            assert b"[DONE]" not in body
            assert b'"finish_reason":"' not in body
            assert await served.ended() == 0
            finishes = [line["finish"] for line in served.lines if line["event"] == "request"]
            assert sorted(finishes) == ["drained", "drained"]

    go(main())


def test_a_request_that_was_on_its_way_is_answered_in_a_drain(go: Go, kit: Kit):
    async def main() -> None:
        drain = {"notice": 0.0, "limit": 10.0}
        async with (
            kit.running(kit.config(server={"drain": drain})) as gateway,
            await gateway.caller() as known,
            await gateway.caller() as new,
        ):
            known.send(kit.post(kit.chat()))
            assert (await known.answer()).status == 200
            gateway.process.stop()
            await kit.until(lambda: not gateway.process.snapshot().listening)
            for caller in (known, new):
                caller.send(kit.post(kit.chat()))
                answer = await caller.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
            await gateway.task

    go(main())


def test_who_is_still_sending_at_the_drain_limit_is_refused(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.running(kit.config(server={"drain": {"notice": 0.0, "limit": 0.1}})) as gateway,
            await gateway.caller() as caller,
        ):
            caller.send(kit.post(kit.chat())[:-5])
            await kit.until(lambda: gateway.app.buffered_bytes)
            gateway.process.stop()
            answer = await caller.answer()
            assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
            await gateway.task

    go(main())


def test_a_second_interrupt_hurries(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(notice="60s", limit="60s")) as served:
            running = await streaming(kit, served.port, 5000)
            served.tell(signal.SIGINT)
            await served.event("draining")
            served.tell(signal.SIGINT)
            assert b"draining" in await rest(running)
            assert await served.ended() == 0

    go(main())


async def metrics(kit: Kit, port: int) -> dict[str, float]:
    async with await kit.connect(port) as caller:
        caller.send(kit.get("/metrics"))
        text = (await caller.answer()).body.decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def waits(kit: Kit, port: int) -> None:
    """Wait until one request is in the queue."""
    while (await metrics(kit, port))['forebay_queue_requests{pool="p"}'] != 1.0:
        pass


OTHER = "{name: e1, engine: sim, sim: {profile: instant}}"


def test_a_reload_adds_and_removes_and_keeps_what_is_the_same(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(SLOW)) as served:
            running = await streaming(kit, served.port, 60)
            logged = await served.rewrite(written(SLOW, OTHER))
            await served.event("configuration applied", logged)
            async with await kit.connect(served.port) as caller:
                caller.send(kit.post(kit.chat(sim={"output_tokens": 1})))
                answer = await caller.answer()
                # e0 is full still: what was in flight has stayed counted
                assert answer.headers["x-forebay-endpoint"] == "e1"
            logged = await served.rewrite(written(OTHER))
            await served.event("configuration applied", logged)
            assert (await rest(running)).endswith(kit.done)
            _, said = await ready(kit, served.port)
            assert said["pools"] == {"p": {"usable": 1, "endpoints": 1}}

    go(main())


def test_a_refused_reload_changes_nothing_and_says_why_once(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(OTHER)) as served:
            bad = written(OTHER).replace("models: [m]", "models: [m]\n    modls: [n]")
            logged = await served.rewrite(bad)
            line = await served.event(
                "configuration refused; the former one stays in force", logged
            )
            assert "modls" in str(line["errors"])
            served.tell(signal.SIGHUP)
            assert (await metrics(kit, served.port))["forebay_config_ok"] == 0.0
            async with await kit.connect(served.port) as caller:
                caller.send(kit.post(kit.chat(sim={"output_tokens": 1})))
                assert (await caller.answer()).status == 200
            status, said = await ready(kit, served.port)
            assert (status, said["config_ok"]) == (200, False)
            moved = written(OTHER).replace("port: 0", "port: 1")
            logged = await served.rewrite(moved)
            line = await served.event(
                "configuration refused; the former one stays in force", logged
            )
            assert "server.port" in str(line["errors"])
            logged = await served.rewrite(written(OTHER))
            await served.event("configuration applied", logged)
            assert (await metrics(kit, served.port))["forebay_config_ok"] == 1.0
            refused = [line for line in served.lines if line["event"].startswith("configuration r")]
            assert len(refused) == 2

    go(main())


def test_queued_requests_are_checked_again_after_a_reload(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(SLOW)) as served:
            running = await streaming(kit, served.port, 5000)
            async with await kit.connect(served.port) as queued:
                queued.send(kit.post(kit.chat(sim={"output_tokens": 1})))
                await waits(kit, served.port)
                logged = await served.rewrite(written(OTHER).replace("[m]", "[other]"))
                await served.event("configuration applied", logged)
                answer = await queued.answer()
                assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
            running.leave()
            async with await kit.connect(served.port) as caller:
                caller.send(kit.post(kit.chat()))
                assert (await caller.answer()).status == 404
                caller.send(kit.post(kit.chat(sim={"output_tokens": 1}) | {"model": "other"}))
                assert (await caller.answer()).status == 200

    go(main())


def test_a_changed_file_is_taken_without_a_signal(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(OTHER)) as served:
            logged = len(served.lines)
            file.write_text(written(OTHER).replace("[m]", "[m, n]"))  # noqa: ASYNC240 - likewise
            await served.event("configuration applied", logged)
            async with await kit.connect(served.port) as caller:
                caller.send(kit.get("/v1/models"))
                answer = await caller.answer()
                assert [card["id"] for card in answer.json["data"]] == ["m", "n"]

    go(main())


def test_a_start_that_fails_says_why_and_exits_1(go: Go, kit: Kit, file: Path):
    async def main() -> None:
        async with serving(file, written(OTHER)) as served:
            taken = re.sub("port: 0", f"port: {served.port}", written(OTHER))
            other = file.with_name("other.yaml")
            other.write_text(taken)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forebay",
                "serve",
                "-c",
                str(other),
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await process.communicate()
            assert process.returncode == 1
            reason = json.loads(said.splitlines()[-1])["reason"]
            assert reason == (
                f"cannot listen on 127.0.0.1:{served.port}: address already in use; "
                "--port takes another"
            )
            assert kit

    go(main())
