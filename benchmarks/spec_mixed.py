# pyright: basic
# ruff: noqa: ANN001, ANN201
# (scripts; what is passed around is said where it is made)
"""What keeping requests from drafts that do not pay saves: mixed temperatures through the gateway.

    python benchmarks/spec_mixed.py config http://127.0.0.1:8001 http://127.0.0.1:8002 > mixed.yaml
    forebay serve -c mixed.yaml
    python benchmarks/spec_mixed.py run http://127.0.0.1:8080 scenes.json --out mixed.json

Two engines of one model, the first with a head, each served under the names plain, all, hot and
warm: the pools. `plain` has the second engine alone, `all` the first alone, `hot` and `warm` both,
with max_temperature 1 and 0.9. Each prompt (token ids, of the scenes' first scene) is asked at each
temperature in each pool; which endpoint answered is the answer's x-forebay-endpoint.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

import httpx

TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
POOLS = ("plain", "all", "hot", "warm")


def config(options):
    """Print the gateway's configuration."""
    fast = f'{{name: POOL-fast, engine: vllm, url: "{options.fast}", speculative: eagle3}}'
    plain = f'{{name: POOL-plain, engine: vllm, url: "{options.plain}"}}'
    limits = {"hot": "1", "warm": "0.9"}
    chosen = {"plain": [plain], "all": [fast], "hot": [fast, plain], "warm": [fast, plain]}
    print("version: 1\nserver: {host: 127.0.0.1, port: 8080, admin: {port: 8081}}\npools:")
    for pool, endpoints in chosen.items():
        print(f"  - name: {pool}\n    models: [{pool}]\n    endpoints:")
        for each in endpoints:
            print(f"      - {each.replace('POOL', pool)}")
        if pool in limits:
            # Acceptance is another matter: here it must not take the endpoint out.
            told = f"max_temperature: {limits[pool]}, min_accept_rate: 1%, return_accept_rate: 2%"
            print(f"    speculation: {{{told}}}")


async def ask(client, pool, prompt, temperature, seed):
    """Ask one; returns tokens a second and which endpoint answered."""
    body = {
        "model": pool, "prompt": prompt, "max_tokens": 160, "temperature": temperature,
        "seed": seed, "ignore_eos": True,
    }  # fmt: skip
    began = time.perf_counter()
    answer = await client.post("/v1/completions", json=body)
    answer.raise_for_status()
    tokens = answer.json()["usage"]["completion_tokens"]
    return tokens / (time.perf_counter() - began), answer.headers["x-forebay-endpoint"]


async def measure(options, pool, prompts):
    """Ask every prompt at every temperature, `--at-a-time` in flight."""
    asked = [(p, t, n) for n, p in enumerate(prompts) for t in TEMPERATURES]
    found, waiting = [], asked[::-1]
    async with httpx.AsyncClient(base_url=options.gateway, timeout=60) as client:

        async def worker() -> None:
            while waiting:
                prompt, temperature, seed = waiting.pop()
                rate, where = await ask(client, pool, prompt, temperature, seed)
                found.append((temperature, rate, where))

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(options.at_a_time)))
        seconds = time.perf_counter() - began
    return {
        "pool": pool,
        "requests": len(found),
        "seconds": round(seconds, 3),
        "share_to_drafts": sum(where.endswith("-fast") for *_, where in found) / len(found),
        "tokens_per_s": round(len(found) * 160 / seconds, 1),
        "tokens_per_s_by_temperature": {
            str(t): round(statistics.mean(rate for own, rate, _ in found if own == t), 1)
            for t in TEMPERATURES
        },
    }


async def run(options):
    """Measure all pools in turn, `--rounds` times, and print what each came to."""
    prompts = json.loads(options.scenes.read_text())[0]["prompts"][: options.prompts]
    for pool in POOLS:  # the first requests meet compilations
        await measure(options, pool, prompts[:1])
    rows = []
    for _ in range(options.rounds):
        for pool in POOLS:
            rows.append(await measure(options, pool, prompts))
            print(json.dumps(rows[-1]), flush=True)
    plain = statistics.mean(row["tokens_per_s"] for row in rows if row["pool"] == "plain")
    for pool in POOLS:
        own = statistics.mean(row["tokens_per_s"] for row in rows if row["pool"] == pool)
        print(pool, "times plain", round(own / plain, 3))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("config", help="print the gateway's configuration")
    one.add_argument("fast", help="URL of the engine with a head")
    one.add_argument("plain", help="URL of the other")
    one.set_defaults(run=config)
    one = commands.add_parser("run", help="send the mixed requests")
    one.add_argument("gateway")
    one.add_argument("scenes", type=Path)
    one.add_argument("--prompts", type=int, default=8)
    one.add_argument("--rounds", type=int, default=2)
    one.add_argument("--at-a-time", type=int, default=1)
    one.add_argument("--out", type=Path)
    one.set_defaults(run=lambda options: asyncio.run(run(options)))
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
