"""What copies of requests cost the callers: the primary's latency by turns without them and with.

Three processes beside this one: two embedded engines behind ports, and the gateway. A closed loop
of callers streams short answers; each round is another gateway with the same engines. The answer is
whether the mean p99 of rounds with copies differs from that of rounds without by more than two
rounds without do from each other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Generator

RESULTS = Path(__file__).parent / "results" / "experiments"
PORT, ONE, TWO = 18680, 18681, 18682


@contextlib.contextmanager
def started(*arguments: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a forebay command until the end of the block."""
    command = [sys.executable, "-m", "forebay", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def config(share: float) -> str:
    """Write a configuration; a share of 0 has no copies."""
    shadow = f", shadow: {{arm: two, share: {share}}}" if share else ""
    return f"""\
version: 1
server: {{host: 127.0.0.1, port: {PORT}, drain: {{notice: 0, limit: 2s}}}}
pools:
  - name: p
    models: [sim]
    endpoints:
      - {{name: one, engine: sim, url: "http://127.0.0.1:{ONE}"}}
      - {{name: two, engine: sim, url: "http://127.0.0.1:{TWO}"}}
experiments:
  - {{name: x, pool: p, arms: {{one: [one], two: [two]}}, split: {{one: 1, two: 0}}{shadow}}}
"""


async def measure(seconds: float, callers: int) -> list[float]:
    """Return the latencies of whole streamed answers."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions"

    async def caller(client: httpx.AsyncClient, number: int) -> None:
        while (began := time.perf_counter()) < end:
            number += callers
            content = f"question {number} " * 20
            body = {
                "model": "sim",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 8,
                "stream": True,
                "temperature": 0,
            }
            answer = await client.post(url, json=body)
            assert answer.content.endswith(b"data: [DONE]\n\n")
            took.append(time.perf_counter() - began)

    async with httpx.AsyncClient(timeout=30) as client:
        await asyncio.gather(*(caller(client, n) for n in range(callers)))
    return took


def wait_for(url: str) -> None:
    """Wait until something answers."""
    for _ in range(200):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=1).status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(url)


def play(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one round."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "forebay.yaml"
        file.write_text(config(arguments.share if name == "with" else 0.0))
        with started("serve", "-c", str(file)):
            wait_for(f"http://127.0.0.1:{PORT}/readyz?pool=p")
            asyncio.run(measure(1.0, arguments.callers))
            took = sorted(asyncio.run(measure(arguments.seconds, arguments.callers)))
            text = httpx.get(f"http://127.0.0.1:{PORT}/metrics").text
    copies = sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("forebay_shadow_copies_total") and "dropped" not in line
    )
    return {
        "round": name,
        "requests": len(took),
        "copies": int(copies),
        "p50_ms": round(took[len(took) // 2] * 1000, 2),
        "p99_ms": round(took[int(len(took) * 0.99)] * 1000, 2),
    }


def compared(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean p99 of each kind of round, and how far two without copies lie apart."""
    kinds = {
        kind: [row["p99_ms"] for row in rows if row["round"] == kind]
        for kind in ("without", "with")
    }
    pairs = [abs(one - two) for one, two in itertools.combinations(kinds["without"], 2)]
    return {
        **{f"p99_ms_{kind}": round(statistics.fmean(each), 2) for kind, each in kinds.items()},
        "apart_ms": round(statistics.fmean(pairs), 2),
        "apart_ms_most": round(max(pairs), 2),
    }


def main() -> None:
    """Run all rounds, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="with copies; one more without")
    parser.add_argument("--share", type=float, default=0.2, help="of the requests, copied")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with (
        started("engine", "sim", "--port", str(ONE)),
        started("engine", "sim", "--port", str(TWO)),
    ):
        for port in (ONE, TWO):
            wait_for(f"http://127.0.0.1:{port}/health")
        for name in ("without", *("with", "without") * arguments.rounds):
            rows.append(play(name, arguments))
            print(json.dumps(rows[-1]), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-shadow.json"
    cores = os.cpu_count()
    told = {"cores": cores, "share": arguments.share, "callers": arguments.callers}
    found = compared(rows)
    print(json.dumps(found))
    file.write_text(json.dumps({**told, **found, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
