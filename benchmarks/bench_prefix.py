#!/usr/bin/env python3
"""Conversations over shared system prompts on two real vLLM: forebay's prefix routing and peers'.

    FOREBAY_RIG=.../rig RIG_HOME=... python benchmarks/bench_prefix.py [NAME ...] [--rounds 2]

NAME is `forebay-learned`, `forebay-exact` (`:4` after it: four requests at once in an engine) or a
peer of the rig's `gateways.sh`. Starts two vLLM
whose KV caches together hold `--cache` of what all conversations come to, and sends the same
conversations through each gateway in turn, another one first in each round; before each run both
caches are emptied. Prints what the engines say of cached tokens, and times to the first token, one
line of JSON a run, of all requests and of those with little to prefill. With `--engines
start` it only keeps them running, with `--engines there` it only measures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from forebay.gateway.prompts.local import load
from forebay.policies.contracts import Route

if TYPE_CHECKING:
    from collections.abc import Generator

ENGINES = (8471, 8472)
GATEWAY = 8475
BLOCK = 32
SESSIONS, TURNS, SYSTEMS = 24, 6, 4
SYSTEM_WORDS, USER_WORDS, ANSWER_WORDS = 620, 48, 18
NEAR = 256
"""Tokens to prefill, as a turn has whose conversation is cached."""
SAID = (
    *("num_preemptions_total", "request_queue_time_seconds_sum", "request_success_total"),
    *("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"),
)
NAMES = ("forebay-learned", "forebay-exact", "vllm-rr", "vllm-cache", "sglang-cache")
WORDS = (
    *("river", "stone", "bridge", "water", "gate", "basin", "turbine", "flow", "level", "screen"),
    *("channel", "valley", "meadow", "forest", "harbour", "market", "window", "garden", "letter"),
    *("signal", "copper", "silver", "engine", "pocket", "branch", "corner"),
)
CONFIG = """\
version: 1
server: {{host: 127.0.0.1, port: {port}, drain: {{notice: 0s, limit: 2s}}}}
pools:
  - name: tiny
    models: [tiny]
    order: fcfs
    prefix: {{mode: {mode}{more}}}
    endpoints:
      - {{name: a, engine: vllm, url: "http://127.0.0.1:{a}"{ea}{limit}}}
      - {{name: b, engine: vllm, url: "http://127.0.0.1:{b}"{eb}{limit}}}
"""
EVENTS = ', events: {{address: "tcp://127.0.0.1:{}", replay: "tcp://127.0.0.1:{}"}}'


@contextlib.contextmanager
def running(command: list[str], log: Path, **env: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a command in a group of its own, and end the whole group."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **env},
        )
    try:
        yield process
    finally:
        for name in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def wait_for(url: str, seconds: float = 240) -> None:
    """Wait until an address answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=20).status_code == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"nothing answers at {url}")


def text(rng: random.Random, words: int) -> str:
    """Write some words that no other text has in this order."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def conversations(seed: int) -> list[list[dict[str, str]]]:
    """Write all messages of each conversation: the system's, then user and assistant by turns."""
    systems = [text(random.Random(f"{seed} system {n}"), SYSTEM_WORDS) for n in range(SYSTEMS)]
    made: list[list[dict[str, str]]] = []
    for session in range(SESSIONS):
        rng = random.Random(f"{seed} session {session}")
        messages = [{"role": "system", "content": systems[session % SYSTEMS]}]
        for _ in range(TURNS):
            messages.append({"role": "user", "content": text(rng, USER_WORDS)})
            messages.append({"role": "assistant", "content": text(rng, ANSWER_WORDS)})
        made.append(messages)
    random.Random(seed).shuffle(made)
    return made


def working_set(seed: int) -> tuple[int, int]:
    """Return the distinct tokens of all conversations, and those of all prompts."""
    tokens = load(f"{os.environ['RIG_HOME']}/model/tiny")
    blocks, distinct, prompts = 4 * BLOCK, set[bytes](), 0
    for messages in conversations(seed):
        for turn in range(TURNS):
            cut = tokens.tokens(Route.CHAT, {"messages": messages[: 2 + 2 * turn]}) or b""
            prompts += len(cut) // 4
            distinct |= {cut[: end + blocks] for end in range(0, len(cut), blocks)}
    return len(distinct) * BLOCK, prompts


class Turn(NamedTuple):
    """What became of one request."""

    session: int
    turn: int
    at: float
    """When it was sent, in seconds of the run's clock."""
    ttft: float
    taken: float
    prompt: int
    cached: int
    endpoint: str
    """Where it went, where the gateway says so."""


async def talk(
    http: httpx.AsyncClient, messages: list[dict[str, str]], number: int, args: argparse.Namespace
) -> list[Turn]:
    """Go through one conversation with pauses."""
    rng = random.Random(f"{args.seed} pauses {number}")
    turns: list[Turn] = []
    await asyncio.sleep(rng.uniform(0, args.spread))
    for turn in range(TURNS):
        body = {
            "model": "tiny",
            "messages": messages[: 2 + 2 * turn],
            "max_tokens": args.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        turns.append(await one(http, body, number, turn))
        await asyncio.sleep(rng.expovariate(1 / args.think))
    return turns


async def one(http: httpx.AsyncClient, body: dict[str, Any], session: int, turn: int) -> Turn:
    """Send one request."""
    began, first, usage = time.perf_counter(), 0.0, dict[str, Any]()
    url = f"http://127.0.0.1:{GATEWAY}/v1/chat/completions"
    async with http.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        endpoint = answer.headers.get("x-forebay-endpoint", "")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            choices: list[Any] = event.get("choices") or []
            if choices and choices[0]["delta"].get("content") and not first:
                first = time.perf_counter() - began
            usage = event.get("usage") or usage
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    taken, cached = time.perf_counter() - began, details.get("cached_tokens") or 0
    return Turn(session, turn, began, first, taken, usage["prompt_tokens"], cached, endpoint)


async def run(name: str, args: argparse.Namespace, round_: int) -> dict[str, Any]:
    """Run all conversations at once."""
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=64)) as http:
        for port in ENGINES:
            (await http.post(f"http://127.0.0.1:{port}/reset_prefix_cache")).raise_for_status()
        began = time.perf_counter()
        talks = enumerate(conversations(args.seed + round_))
        before = [await engine_says(http, port) for port in ENGINES]
        told = await asyncio.gather(*(talk(http, m, n, args) for n, m in talks))
        after = [await engine_says(http, port) for port in ENGINES]
    turns = sorted((turn for session in told for turn in session), key=lambda turn: turn.at)
    if args.log:
        with args.log.open("a") as file:
            for turn in turns:
                told_of = {"gateway": name, "round": round_, **turn._asdict()}
                file.write(json.dumps(told_of | {"at": round(turn.at - began, 3)}) + "\n")
    ttft = sorted(turn.ttft for turn in turns)
    near = [turn.ttft for turn in turns if turn.prompt - turn.cached <= NEAR]
    prompts, cached = sum(t.prompt for t in turns), sum(t.cached for t in turns)
    return {
        "gateway": name,
        "round": round_,
        "requests": len(turns),
        "prompt_tokens": prompts,
        "cached_share": round(cached / prompts, 4),
        "ttft_p50_ms": round(statistics.median(ttft) * 1000, 1),
        "ttft_p95_ms": round(ttft[int(len(ttft) * 0.95)] * 1000, 1),
        "ttft_mean_ms": round(statistics.fmean(ttft) * 1000, 1),
        "near_share": round(len(near) / len(turns), 3),
        "near_ttft_p50_ms": round(statistics.median(near or [0.0]) * 1000, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "engines": [
            {name: round(end.get(name, 0.0) - start.get(name, 0.0), 2) for name in SAID}
            for start, end in zip(before, after, strict=True)
        ],
    }


async def engine_says(http: httpx.AsyncClient, port: int) -> dict[str, float]:
    """Read an engine's own account of preemptions and of waiting inside it, in seconds."""
    text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    told: dict[str, float] = {}
    for line in text.splitlines():
        name, value = line.partition("{")[0].removeprefix("vllm:"), line.rpartition(" ")[2]
        if name in SAID:
            told[name] = told.get(name, 0.0) + float(value)
    return told


def command_of(name: str, folder: Path) -> list[str]:
    """Return what starts a gateway."""
    a, b = ENGINES
    if not name.startswith("forebay"):
        urls = [f"http://127.0.0.1:{port}" for port in ENGINES]
        return [f"{os.environ['FOREBAY_RIG']}/gateways.sh", name, str(GATEWAY), *urls]
    name, _, at_once = name.partition(":")
    exact = name == "forebay-exact"
    more = f", tokenizer: {os.environ['RIG_HOME']}/model/tiny, block_tokens: 32" if exact else ""
    limit = f", max_in_flight: {at_once}" if at_once else ""
    ports: dict[str, Any] = {"a": a, "b": b, "ea": "", "eb": ""}
    if exact:
        ports |= {f"e{e}": EVENTS.format(ports[e] + 1000, ports[e] + 2000) for e in "ab"}
    config = folder / f"{name}.yaml"
    mode = name.removeprefix("forebay-")
    config.write_text(CONFIG.format(port=GATEWAY, mode=mode, more=more, limit=limit, **ports))
    return [sys.executable, "-m", "forebay", "serve", "-c", str(config)]


def engine(port: int, blocks: int) -> list[str]:
    """Return what starts one vLLM."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port + 1000}",
        "replay_endpoint": f"tcp://*:{port + 2000}",
    }
    return [
        *(f"{os.environ['FOREBAY_RIG']}/serve.sh", "vllm", str(port)),
        *("--kv-events-config", json.dumps(events)),
        *("--num-gpu-blocks-override", str(blocks), "--max-num-batched-tokens", "2048"),
    ]


def _stop(*_: object) -> None:
    """End as an error does, so that engines end, too."""
    sys.exit(1)


def main() -> None:
    """Start the engines, and each gateway by turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=float, default=0.5, help="share of all that caches hold")
    parser.add_argument("--think", type=float, default=2.0, help="mean pause between turns, s")
    parser.add_argument("--spread", type=float, default=4.0, help="when sessions begin, s")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--log", type=Path, help="append what became of each request")
    parser.add_argument("--engines", choices=("both", "start", "there"), default="both")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    distinct, prompts = working_set(args.seed)
    print(json.dumps({"tokens": distinct, "endless_cache": round(1 - distinct / prompts, 4)}))
    blocks = int(distinct * args.cache / BLOCK / len(ENGINES))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for core, port in enumerate(ENGINES if args.engines != "there" else ()):
            log = folder / f"engine-{port}.log"
            env = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": "", "VLLM_CPU_KVCACHE_SPACE": "1"}
            # Left to themselves both bind to the same cores, and one's step waits for the other's.
            env["VLLM_CPU_OMP_THREADS_BIND"] = str(core)
            stack.enter_context(running(engine(port, blocks), log, **env))
        for port in ENGINES:
            wait_for(f"http://127.0.0.1:{port}/health")
        while args.engines == "start":
            time.sleep(1)
        for round_ in range(args.rounds):
            first = round_ % len(args.names)
            for name in (*args.names[first:], *args.names[:first]):
                with running(command_of(name, folder), folder / f"{name}.log"):
                    wait_for(f"http://127.0.0.1:{GATEWAY}/v1/models", 60)
                    time.sleep(2)
                    print(json.dumps(asyncio.run(run(name, args, round_))), flush=True)


if __name__ == "__main__":
    main()
