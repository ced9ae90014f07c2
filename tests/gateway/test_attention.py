"""What the reader of events is told of an endpoint."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from forebay.gateway.attention import Attention, watch_of
from forebay.gateway.config.prefix import Events
from forebay.gateway.config.sections import Config
from forebay.gateway.endpoint import Endpoint
from forebay.gateway.pools import Pool
from forebay.gateway.telemetry.histogram import Histogram


@pytest.mark.parametrize(
    ("address", "binds"),
    [
        ("tcp://10.0.0.5:5557", False),
        ("tcp://[fd00::7]:5557", False),
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///run/events", False),
    ],
)
def test_only_an_address_of_all_this_hosts_is_bound(address: str, *, binds: bool):
    events = Events.model_validate({"address": address})
    assert watch_of(events, 16, 1).bind is binds
    assert watch_of(events.model_copy(update={"bind": True}), 16, 1).bind


def test_ranks_are_at_the_ports_that_follow():
    events = Events.model_validate({"address": "tcp://[fd00::7]:5557", "ranks": 2})
    found = watch_of(events, 16, 1).addresses
    assert found == ("tcp://[fd00::7]:5557", "tcp://[fd00::7]:5558")


def _nobody(_pool: str, _endpoint: str, _state: str) -> None:
    pass


def test_prompts_are_cut_as_engines_do_once_there_are_some():
    engine = {"name": "e", "engine": "sglang", "url": "http://e:1"}
    prefix = {"mode": "auto", "tokenizer": "engine"}
    named = {"name": "p", "models": ["m"], "endpoints": [engine], "prefix": prefix}
    (section,) = Config.model_validate({"version": 1, "pools": [named]}).pools
    pool = Pool(section, seed=1, itl=Histogram((1.0,)), changed=_nobody)
    assert pool.prefix is not None
    own = pool.prefix

    async def main() -> None:
        attention = Attention(cast("Any", None))
        attention.attend([pool])
        assert own.cutter is None
        pool.set_endpoints([Endpoint(section.endpoints[0], section.health, cast("Any", None))])
        attention.attend([pool])
        assert own.cutter is not None
        await attention.close()

    asyncio.run(main())
