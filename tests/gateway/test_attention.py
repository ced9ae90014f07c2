"""What the reader of events is told of an endpoint."""

from __future__ import annotations

import pytest

from forebay.gateway.attention import watch_of
from forebay.gateway.config.prefix import Events


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
