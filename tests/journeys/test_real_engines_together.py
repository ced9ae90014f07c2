"""Real engines behind one pool: vLLM twice, SGLang, llama-server. By hand: `pytest -m engine`.

Needs FOREBAY_RIG, the folder of scripts that start engines (`serve.sh ENGINE PORT`). Starts them on
loopback, about a minute on two cores; what was seen is in docs/engines.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from forebay.adapters.metrics_text import read_total

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

RIG = os.environ.get("FOREBAY_RIG")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(RIG is None, reason="FOREBAY_RIG names no folder with engine scripts"),
]
ENGINES = {"vllm-0": 8131, "vllm-1": 8132, "sgl-0": 8133, "cpp-0": 8134}
KINDS = {"vllm": "vllm", "sgl": "sglang", "cpp": "llamacpp"}
GATEWAY = 8139
BASE = f"http://127.0.0.1:{GATEWAY}"


def kind(name: str) -> str:
    return KINDS[name.partition("-")[0]]


@contextmanager
def engine(name: str, port: int, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """Start an engine in a process group of its own, so that all of it can be killed."""
    assert RIG is not None
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(Path(RIG) / "serve.sh"), kind(name), str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,  # not in the repository: its `kernels` would come before another's
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def wait_for(url: str, limit_s: float = 240) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2).status_code == 200:
                return
        time.sleep(0.3)
    pytest.fail(f"{url} did not answer in {limit_s:g} s")


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    folder = tmp_path_factory.mktemp("engines")
    with contextmanagers(folder) as started:
        yield started


@contextmanager
def contextmanagers(folder: Path) -> Generator[dict[str, subprocess.Popen[bytes]]]:
    """Start the engines one after the other: four that compile at once take longer."""
    from contextlib import ExitStack

    started: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for name, port in ENGINES.items():
            started[name] = stack.enter_context(engine(name, port, folder / f"{name}.log"))
            wait_for(f"http://127.0.0.1:{port}/health")
        yield started


@pytest.fixture(scope="module")
def gateway(
    engines: dict[str, subprocess.Popen[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("gateway")
    lines = "\n".join(
        f'      - {{name: {name}, engine: {kind(name)}, url: "http://127.0.0.1:{ENGINES[name]}",'
        " max_in_flight: 16}"
        for name in engines
    )
    (folder / "forebay.yaml").write_text(
        f"version: 1\nserver: {{host: 127.0.0.1, port: {GATEWAY}}}\npools:\n"
        f"  - name: tiny\n    models: [tiny]\n    retry: {{budget: 50%}}\n"
        f"    endpoints:\n{lines}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "serve", "-c", str(folder / "forebay.yaml")],
            stderr=log,
        )
    try:
        wait_for(f"{BASE}/readyz?pool=tiny", 20)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert process.returncode == 0, (folder / "log").read_text()[-3000:]


def body(number: int, *, stream: bool, tokens: int = 48) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"question {number}: say something"}],
        "max_tokens": tokens,
        "stream": stream,
        "temperature": 0.7,
        "top_p": 0.9,
    }


async def ask(client: httpx.AsyncClient, number: int) -> tuple[str, str]:
    """Ask once, every other time streamed; return how it ended and who answered."""
    stream = number % 2 == 0
    url = f"{BASE}/v1/chat/completions"
    if not stream:
        answer = await client.post(url, json=body(number, stream=False))
        who = answer.headers.get("x-forebay-endpoint", "")
        if answer.status_code == 200 and "choices" in answer.json():
            return "whole", who
        return f"status {answer.status_code}", who
    async with client.stream("POST", url, json=body(number, stream=True)) as answer:
        who = answer.headers.get("x-forebay-endpoint", "")
        if answer.status_code != 200:
            return f"status {answer.status_code}", who
        text = (await answer.aread()).decode()
    if text.endswith("data: [DONE]\n\n"):
        return "whole", who
    events = [line for line in text.split("\n\n") if line]
    last = events[-1].removeprefix("data: ")
    with suppress(ValueError):
        if "error" in json.loads(last) and len(events) > 1:
            return "cut with an error event", who
    return "cut silently", who


@pytest.mark.usefixtures("gateway")
def test_each_engine_answers_through_the_gateway() -> None:
    async def run() -> Counter[str]:
        async with httpx.AsyncClient(timeout=120) as client:
            ends = await asyncio.gather(*(ask(client, n) for n in range(64)))
        assert {end for end, _ in ends} == {"whole"}
        return Counter(who for _, who in ends)

    spread = asyncio.run(run())
    assert set(spread) == set(ENGINES), spread


@pytest.mark.usefixtures("gateway")
def test_a_caller_that_leaves_stops_vllm_within_a_second() -> None:
    def running() -> int:
        ports = (ENGINES["vllm-0"], ENGINES["vllm-1"])
        texts = [httpx.get(f"http://127.0.0.1:{port}/metrics").content for port in ports]
        return sum(read_total(text, b"vllm:num_requests_running") or 0 for text in texts)

    async def run() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            tasks = [
                asyncio.create_task(
                    client.post(
                        f"{BASE}/v1/chat/completions", json=body(n, stream=n % 2 == 0, tokens=3500)
                    )
                )
                for n in range(24)
            ]
            end = time.monotonic() + 30
            while running() == 0 and time.monotonic() < end:  # noqa: ASYNC110 - a gauge elsewhere
                await asyncio.sleep(0.1)
            assert running() > 0
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        left = time.monotonic()
        while running() and time.monotonic() < left + 5:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.05)
        took = time.monotonic() - left
        assert running() == 0, f"still running {took:.2f} s after the callers left"
        assert took < 1.5  # a second, and what reading the gauge of a busy engine takes

    asyncio.run(run())


@pytest.mark.usefixtures("gateway")
def test_a_killed_engine_costs_only_streams_that_had_begun(
    engines: dict[str, subprocess.Popen[bytes]],
) -> None:
    async def run() -> Counter[str]:
        ends: Counter[str] = Counter()
        async with httpx.AsyncClient(timeout=180) as client:

            async def worker(first: int) -> None:
                for number in range(first, 320, 24):
                    end, who = await ask(client, number)
                    ends[f"{end} ({who})" if end != "whole" else "whole"] += 1

            workers = [asyncio.create_task(worker(n)) for n in range(24)]
            await asyncio.sleep(3)
            os.killpg(engines["vllm-1"].pid, signal.SIGKILL)
            await asyncio.gather(*workers)
        return ends

    ends = asyncio.run(run())
    lost = {end: n for end, n in ends.items() if end != "whole"}
    assert sum(ends.values()) == 320
    assert set(lost) <= {"cut with an error event (vllm-1)"}, lost
