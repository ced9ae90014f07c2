"""What only a real server shows: lateness, restarts, clusters, sentinels."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from forebay.gateway.quota.redis_store import RedisStore, connect
from forebay.gateway.quota.store import Batch, Reply, Reserve, Settle, StoreAway, Usage, Used
from forebay.policies.quota import Caps, Dates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RedisServer, Run

TODAY = Dates(20261129, 202611)
numbers = itertools.count()


def batch(*operations: Reserve | Settle | Usage, tenant: str = "acme") -> Batch:
    return Batch(tenant, Caps(), TODAY, list(operations))


async def ask(store: RedisStore, *operations: Reserve | Settle | Usage) -> list[Reply]:
    return (await store.apply([batch(*operations)]))[0]


def test_a_frozen_server_counts_as_away_and_forgets_what_came_too_late(
    redis_servers: Callable[..., RedisServer], run: Run
):
    server = redis_servers()

    async def scenario() -> list[Reply]:
        store = RedisStore(server.url, timeout_s=0.5)
        await ask(store, Reserve("a", 1, 10, 0))
        server.freeze()
        with pytest.raises(StoreAway):
            await ask(store, Reserve("b", 1, 10, 0))
        await asyncio.sleep(0.05)  # past the slack of its deadline
        server.thaw()
        patient = RedisStore(server.url, timeout_s=5.0)
        used = await ask(patient, Usage())
        await store.close()
        await patient.close()
        return used

    assert run(scenario()) == [Used(1, 10, 1, 10, 10, 0, 0)]


def test_nobody_there_is_told_at_once(run: Run):
    async def scenario() -> None:
        store = RedisStore("redis://127.0.0.1:1/0")
        with pytest.raises(StoreAway, match="connect"):
            await ask(store, Usage())
        await store.close()

    run(scenario())


def test_a_server_that_lost_its_scripts_gets_them_again(redis_server: RedisServer, run: Run):
    async def scenario() -> list[Reply]:
        store = RedisStore(redis_server.url, prefix=f"scripts{next(numbers)}", timeout_s=5.0)
        await ask(store, Reserve("a", 1, 10, 0))
        with Redis.from_url(redis_server.url) as client:  # type: ignore[reportUnknownMemberType] - redis-py's **kwargs
            client.script_flush()
        used = await ask(store, Usage())
        await store.close()
        return used

    assert run(scenario()) == [Used(1, 10, 1, 10, 10, 0, 0)]


def test_nothing_is_kept_for_ever(redis_server: RedisServer, run: Run):
    async def scenario() -> list[int]:
        store = RedisStore(redis_server.url, prefix=f"ttl{next(numbers)}", timeout_s=5.0)
        await ask(store, Reserve("a", 1, 10, 0))
        with Redis.from_url(redis_server.url) as client:  # type: ignore[reportUnknownMemberType] - redis-py's **kwargs
            left = [client.ttl(key) for key in store.keys("acme")]
        await store.close()
        return left

    state, leases, expiry, gone = run(scenario())
    assert 32 * 86400 < state <= 40 * 86400, "longer than a month"
    assert 3600 < leases <= 7200
    assert 3600 < expiry <= 7200
    assert gone == -2, "there is none yet"


def test_the_keys_of_a_tenant_live_on_one_node_of_a_cluster(
    redis_servers: Callable[..., RedisServer], run: Run
):
    server = redis_servers("--cluster-enabled", "yes")
    with Redis(port=server.port) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)  # type: ignore[reportUnknownMemberType] - any reply
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):  # type: ignore[reportUnknownMemberType] - any reply
            time.sleep(0.01)

    async def scenario() -> list[list[Reply]]:
        url = server.url.replace("redis://", "redis+cluster://")
        store = RedisStore(url, timeout_s=5.0)
        asked = [Reserve("a", 1, 10, 0), Settle("a", 1, 4, 0), Usage()]
        replies = await store.apply([batch(*asked, tenant=name) for name in ("acme", "globex")])
        await store.close()
        return [reply[1:] for reply in replies]

    assert run(scenario()) == [[1, Used(1, 4, 0, 4, 4, 0, 0)]] * 2


def test_sentinels_say_where_the_primary_is(
    redis_servers: Callable[..., RedisServer], tmp_path: Path, run: Run
):
    primary = redis_servers()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor counters 127.0.0.1 {primary.port} 1\n")
    sentinel = redis_servers(str(config), "--sentinel")

    async def scenario() -> list[Reply]:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/counters/0"
        store = RedisStore(url, timeout_s=5.0)
        used = await ask(store, Reserve("a", 1, 10, 0), Usage())
        await store.close()
        return used[1:]

    assert run(scenario()) == [Used(1, 10, 1, 10, 10, 0, 0)]


def test_a_url_says_which_kind_of_server_it_is():
    async def kinds() -> list[str]:
        urls = ("redis://h", "rediss://h", "redis+cluster://h:7000", "redis+sentinel://h/name")
        return [type(connect(url)).__name__ for url in urls]

    assert asyncio.run(kinds()) == ["Redis", "Redis", "RedisCluster", "Redis"]
