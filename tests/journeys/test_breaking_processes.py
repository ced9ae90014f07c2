"""A gateway process started as no operator should start one."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journeys.conftest import Go, Kit

CONFIG = """
version: 1
server: {{host: 127.0.0.1, port: {port}, drain: {{notice: 0s, limit: 1s}}}}
pools: [{{name: p, models: [m], endpoints: [{{name: e0, engine: sim, sim: {{profile: instant}}}}]}}]
"""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"], ids=["errors", "all three"])
def test_a_process_without_standard_files_serves_and_ends(
    go: Go, kit: Kit, tmp_path: Path, unused_port: int, closed: str
):
    path = tmp_path / "forebay.yaml"
    path.write_text(CONFIG.format(port=unused_port))
    command = f'exec "$0" -m forebay serve -c "$1" {closed}'

    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec("sh", "-c", command, sys.executable, path)
        try:
            caller = None
            async with asyncio.timeout(30):
                while caller is None:
                    try:
                        caller = await kit.connect(unused_port)
                    except OSError:
                        assert process.returncode is None
                        await asyncio.sleep(0.05)
            caller.send(kit.post(kit.chat()))
            assert (await caller.answer()).status == 200
            caller.leave()
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    go(scenario())


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
