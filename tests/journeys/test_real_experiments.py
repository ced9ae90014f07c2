"""An experiment between real engines: vLLM, SGLang, llama-server. By hand: `pytest -m engine`.

Needs FOREBAY_RIG, the folder of scripts that start engines (`serve.sh ENGINE PORT`); a few minutes
on two cores. What was seen is in docs/experiments.md. FOREBAY_REPORT names a folder to leave the
report in.
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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

RIG = os.environ.get("FOREBAY_RIG")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(RIG is None, reason="FOREBAY_RIG names no folder with engine scripts"),
]
ENGINES = {"vllm": 8151, "sglang": 8152, "llamacpp": 8153}
GATEWAY, ADMIN = 8158, 8159
BASE = f"http://127.0.0.1:{GATEWAY}"
CONTROL = f"http://127.0.0.1:{ADMIN}"
EXPERIMENT = """\
  - name: engines
    pool: tiny
    arms: {vllm: [vllm], sglang: [sglang], cpp: [llamacpp]}
    split: {vllm: 2, sglang: 1, cpp: 1}
    warmup: 2s
    stall: 4s
    guardrails: {ttft: off, ttft_p99: off, tpot: off, length: off, truncated: off, empty: off}
    shadow: {arm: cpp, share: 20%}
"""


@contextmanager
def engine(kind: str, port: int, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """Start an engine in a process group of its own, so that all of it can be stopped."""
    assert RIG is not None
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(Path(RIG) / "serve.sh"), kind, str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,  # not in the repository: its `kernels` would come before another's
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def wait_for(url: str, limit_s: float = 400) -> None:
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
    started: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for name, port in ENGINES.items():
            started[name] = stack.enter_context(engine(name, port, folder / f"{name}.log"))
            wait_for(f"http://127.0.0.1:{port}/health")
        yield started


@pytest.fixture(scope="module")
def gateway(
    engines: dict[str, subprocess.Popen[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("gateway")
    lines = "\n".join(
        f'      - {{name: {name}, engine: {name}, url: "http://127.0.0.1:{ENGINES[name]}",'
        " max_in_flight: 8}"
        for name in engines
    )
    file = folder / "forebay.yaml"
    file.write_text(
        f"version: 1\nserver: {{host: 127.0.0.1, port: {GATEWAY}, admin: {{port: {ADMIN}}}}}\n"
        f"pools:\n  - name: tiny\n    models: [tiny]\n    timeouts: {{idle: 20s, connect: 20s}}\n"
        f"    endpoints:\n{lines}\nexperiments:\n{EXPERIMENT}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "serve", "-c", str(file)], stderr=log
        )
    try:
        wait_for(f"{BASE}/readyz?pool=tiny", 30)
        wait_for(f"{CONTROL}/admin/v1/experiments", 30)
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert process.returncode == 0, (folder / "log").read_text()[-3000:]


def body(number: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"question {number}: say something " * 4}],
        "max_tokens": 16,
        "stream": number % 4 != 3,
        "temperature": 0,
    }


async def ask(client: httpx.AsyncClient, number: int) -> tuple[str, str]:
    """Ask once, mostly streamed; return how it ended and which arm it was given."""
    url, asked = f"{BASE}/v1/chat/completions", body(number)
    async with client.stream("POST", url, json=asked) as answer:
        arm = answer.headers.get("x-forebay-arm", "").partition("/")[2]
        moved = answer.headers.get("x-forebay-moved", "")
        if answer.status_code != 200:
            return f"status {answer.status_code}", arm
        text = (await answer.aread()).decode()
    whole = "whole" + (f", {moved}" if moved else "")
    if not asked["stream"]:
        return (whole if json.loads(text)["choices"] else "no choices"), arm
    return (whole if text.endswith("data: [DONE]\n\n") else "cut"), arm


async def drive(first: int, count: int, workers: int = 6) -> Counter[tuple[str, str]]:
    ends: Counter[tuple[str, str]] = Counter()

    async with httpx.AsyncClient(timeout=120) as client:

        async def worker(number: int) -> None:
            for each in range(first + number, first + count, workers):
                ends[await ask(client, each)] += 1

        await asyncio.gather(*(worker(n) for n in range(workers)))
    return ends


def keep(name: str, text: str) -> None:
    """Leave what was seen where somebody asked for it."""
    folder = os.environ.get("FOREBAY_REPORT")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(text)


def forebay(*arguments: str) -> Any:
    told = subprocess.run(
        [sys.executable, "-m", "forebay", "ab", *arguments, "--admin", CONTROL, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(told.stdout)


def test_three_engines_are_compared_and_every_answer_is_valid(gateway: Path) -> None:
    ends = asyncio.run(drive(0, 600))
    assert {end for end, _ in ends} == {"whole"}, ends
    page = gateway / "report.html"
    report = forebay("report", "engines", "--html", str(page))
    arms = {arm["name"]: arm for arm in report["arms"]}
    counted = Counter({name: arm["requests"] for name, arm in arms.items()})
    asked = Counter[str]()
    for (_, arm), number in ends.items():
        asked[arm] += number
    assert counted == asked
    assert all(arm["spreads"]["ttft"]["count"] > 20 for arm in arms.values())
    effects = {(e["arm"], e["measure"]) for e in report["effects"] if e["where"] == "all"}
    assert {("sglang", "ttft"), ("cpp", "ttft"), ("cpp", "errors")} <= effects
    copies = report["shadow"]["buckets"]["to-512"]
    assert copies["copies"] > 0
    text = page.read_text()
    assert text.count("<svg") >= 3
    assert "http" not in text.replace("http://www.w3.org", "")
    keep("engines.html", text)
    keep("engines.json", json.dumps(report))


@pytest.mark.usefixtures("gateway")
def test_a_stopped_candidate_is_rolled_back_and_no_request_without_bytes_is_lost(
    engines: dict[str, subprocess.Popen[bytes]],
) -> None:
    async def run() -> Counter[tuple[str, str]]:
        driving = asyncio.create_task(drive(1000, 600, workers=12))
        await asyncio.sleep(2)
        os.killpg(engines["llamacpp"].pid, signal.SIGSTOP)
        return await driving

    ends = asyncio.run(run())
    report = forebay("status", "engines")["experiments"][0]
    last = report["decisions"][-1]
    assert (last["what"], last["arm"], last["who"]) == ("roll back", "cpp", "forebay")
    keep("stopped.json", json.dumps([sorted(ends.items()), last]))
    lost = {end: n for end, n in ends.items() if not end[0].startswith("whole")}
    # What had begun to stream when its engine stopped cannot be taken elsewhere.
    assert {end for end, _ in lost} <= {"cut"}
    assert sum(lost.values()) <= 8
    assert {arm for _, arm in lost} <= {"cpp"}
    assert sum(ends.values()) == 600
