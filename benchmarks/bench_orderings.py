"""Orderings in front of real engines: the same arrivals for each, and what callers saw.

    python benchmarks/bench_orderings.py http://127.0.0.1:8101 http://127.0.0.1:8102 --model tiny

For each ordering a gateway of its own is started in front of the engines, with `--in-flight`
requests at each. First their capacity is measured, first come first served, with as many callers
as fill them three times; then requests come at random at `--load` times that on average, in spells
of `--spell` seconds with more and with fewer of them, the same ones at the same moments for each
ordering: so there is a queue to order however quick the engines are at the time. The ordering that
goes first changes each round, since machines get busier and engines warmer. Times count from the
moment a request was meant to be sent. `max_tokens` is the true length (`ignore_eos`), so that the
gateway, which predicts by the running mean and never more than `max_tokens`, tells short from long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

PORT = 8397
CONFIG = """\
version: 1
server: {{host: 127.0.0.1, port: {port}, drain: {{notice: 0s, limit: 1s}}}}
pools:
  - name: main
    models: [{model}]
    order: {order}
    scheduling: {{predictor: mean}}
    allow_fields: []
    endpoints:
{endpoints}
telemetry: {{log_requests: false}}
"""


@contextlib.contextmanager
def gateway(order: str, given: argparse.Namespace, folder: Path) -> Generator[None]:
    """Run a gateway with one ordering."""
    endpoints = "\n".join(
        f"      - {{name: e{n}, engine: vllm, url: '{url}', max_in_flight: {given.in_flight}}}"
        for n, url in enumerate(given.urls)
    )
    config = folder / f"{order}.yaml"
    config.write_text(CONFIG.format(port=PORT, model=given.model, order=order, endpoints=endpoints))
    command = [str(Path(sys.executable).with_name("forebay")), "serve", "-c", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until_ready()
        yield
    finally:
        process.terminate()
        process.wait(15)


def wait_until_ready() -> None:
    """Wait until the gateway says that it is ready."""
    for _ in range(600):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=2).close()
            return
        time.sleep(0.1)
    raise SystemExit("the gateway is not ready; are the engines up?")


def work(count: int, model: str, seed: int) -> list[tuple[bytes, int]]:
    """Make request bodies, most of them for short answers, with their lengths."""
    rng = random.Random(seed)
    made: list[tuple[bytes, int]] = []
    for number in range(count):
        tokens = min(600, max(4, int(rng.lognormvariate(3.6, 1.1))))
        words = " ".join(str(rng.randrange(10**6)) for _ in range(rng.randrange(5, 60)))
        body = {
            "model": model,
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": f"{number} {words}"}],
        }
        made.append((json.dumps(body).encode(), tokens))
    return made


async def ask(body: bytes, due: float) -> tuple[float, float] | None:
    """Send a request; return seconds to its first byte of answer and to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode())
        writer.write(body)
        status = await reader.readline()
        if b" 200 " not in status:
            return None
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1)
        first = time.monotonic()
        while await reader.read(1 << 16):
            pass
        return first - due, time.monotonic() - due
    finally:
        writer.close()


async def capacity(bodies: Sequence[tuple[bytes, int]], callers: int, seconds: float) -> float:
    """Return requests a second with so many callers that ask again and again."""
    rest, ended = iter(bodies), list[float]()
    end = time.monotonic() + seconds

    async def caller() -> None:
        for body, _ in rest:
            if time.monotonic() > end:
                return
            if await ask(body, time.monotonic()) is not None:
                ended.append(time.monotonic())

    await asyncio.gather(*(caller() for _ in range(callers)))
    warm = [moment for moment in ended if end - 0.8 * seconds < moment < end]
    return len(warm) / (0.8 * seconds)


def arrivals(count: int, rate: float, given: argparse.Namespace, seed: int) -> list[float]:
    """Draw moments in seconds: spells of more, then of fewer than `rate` by the share `--swing`."""
    rng, clock, made = random.Random(seed), 0.0, list[float]()
    while len(made) < count:
        many = int(clock / given.spell) % 2 == 0
        clock += rng.expovariate(rate * (1 + given.swing if many else 1 - given.swing))
        made.append(clock)
    return made


async def offered(
    bodies: Sequence[tuple[bytes, int]], moments: Sequence[float]
) -> list[tuple[float, float] | None]:
    """Send requests at these moments; return what became of each."""
    start, tasks = time.monotonic(), list[asyncio.Task[Any]]()
    for (body, _), moment in zip(bodies, moments, strict=True):
        await asyncio.sleep(max(0.0, start + moment - time.monotonic()))
        tasks.append(asyncio.create_task(ask(body, start + moment)))
    return await asyncio.gather(*tasks)


def told(
    bodies: Sequence[tuple[bytes, int]], answers: Sequence[tuple[float, float] | None]
) -> dict[str, Any]:
    """Put a run into numbers: seconds, over those answered."""
    served = [(b[1], *a) for b, a in zip(bodies, answers, strict=True) if a is not None]
    firsts = sorted(first for _, first, _ in served)
    ends = sorted(end for _, _, end in served)
    long = sorted(end for tokens, _, end in served if tokens > 200)

    def at(values: Sequence[float], share: float) -> float:
        return round(values[int(share * (len(values) - 1))], 3) if values else 0.0

    return {
        "requests": len(bodies),
        "failed": len(bodies) - len(served),
        "mean_ttft_s": round(sum(firsts) / len(firsts), 3),
        "p50_ttft_s": at(firsts, 0.5),
        "p99_ttft_s": at(firsts, 0.99),
        "max_ttft_s": round(firsts[-1], 3),
        "mean_e2e_s": round(sum(ends) / len(ends), 3),
        "p99_e2e_s": at(ends, 0.99),
        "long": len(long),
        "p99_e2e_of_long_s": at(long, 0.99),
    }


def main() -> None:
    """Measure capacity, then each ordering in turn; print a JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--orders", default="fcfs,ml")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds to measure capacity")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--spell", type=float, default=8.0, help="seconds")
    parser.add_argument("--swing", type=float, default=0.5, help="0 for none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with gateway("fcfs", given, folder):
            many = work(20_000, given.model, 1)
            callers = 3 * given.in_flight * len(given.urls)
            most = asyncio.run(capacity(many, callers, given.warm_up))
        rate = given.load * most
        print(json.dumps({"capacity_rps": round(most, 2), "load": given.load}), flush=True)
        for seed in range(given.rounds):
            bodies = work(int(rate * given.seconds), given.model, 100 + seed)
            moments = arrivals(len(bodies), rate, given, seed)
            orders = given.orders.split(",")
            for order in orders if seed % 2 == 0 else reversed(orders):
                with gateway(order, given, folder):
                    answers = asyncio.run(offered(bodies, moments))
                row = {"order": order, "seed": seed, **told(bodies, answers)}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
