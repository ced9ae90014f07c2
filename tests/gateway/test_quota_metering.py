"""Metering as a process has it: which meter, where usage is kept, how it starts and ends."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.config.sections import Config
from forebay.gateway.meter import Unmetered
from forebay.gateway.quota.local import LocalMeter
from forebay.gateway.quota.metering import Metering, ledger_path
from forebay.gateway.quota.shared import SharedMeter
from forebay.gateway.quota.store import StoreAway
from forebay.gateway.telemetry.snapshot import QuotaStatus
from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

ACME = {"name": "acme", "limits": {"concurrent": 2}}
AWAY = {"url": "redis://127.0.0.1:1/0"}


def config(**sections: Any) -> Config:
    pool = {"name": "p", "models": ["m"], "endpoints": [{"name": "e", "engine": "sim"}]}
    return Config.model_validate({"version": 1, "pools": [pool], **sections})


def metering(settings: Config, file: Path | None = None) -> Metering:
    return Metering(settings, file, now=time.monotonic)


def test_the_ledger_lies_beside_the_configuration(tmp_path: Path):
    file = tmp_path / "forebay.yaml"
    assert ledger_path(config(tenants=[ACME]), file) == tmp_path / "forebay-usage.db"
    assert ledger_path(config(state={"ledger": "u.db"}), file) == tmp_path / "u.db"
    elsewhere = str(tmp_path / "other" / "u.db")
    assert str(ledger_path(config(state={"ledger": elsewhere}), file)) == elsewhere
    assert ledger_path(config(), file) is None
    assert ledger_path(config(tenants=[ACME]), None) is None
    assert ledger_path(config(tenants=[ACME], state=AWAY), file) is None


def test_the_configuration_says_which_meter_there_is():
    async def kinds() -> list[type]:
        settings = (config(), config(tenants=[ACME]), config(tenants=[ACME], state=AWAY))
        return [type(metering(each).meter) for each in settings]

    assert asyncio.run(kinds()) == [Unmetered, LocalMeter, SharedMeter]


def test_a_ledger_that_cannot_be_written_stops_the_start_only_where_it_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    missing = tmp_path / "missing" / "forebay.yaml"
    with pytest.raises(ConfigError, match=r"state\.ledger: .* cannot be written"):
        metering(config(tenants=[ACME], state={"ledger": "u.db"}), missing)
    made = metering(config(tenants=[ACME]), missing)
    assert made.ledger.book is None
    assert [record.message for record in caplog.records] == [
        "usage is not kept; set state.ledger to a file that can be written"
    ]


def test_without_tenants_nothing_is_metered():
    async def scenario() -> None:
        made = metering(config())
        await made.start()
        assert (await made.used("acme"), await made.usage(None, 0)) == (None, None)
        assert made.status({"acme"}) == QuotaStatus()
        assert await made.close()

    asyncio.run(scenario())


def test_counters_that_are_away_do_not_keep_a_process_from_starting_or_ending():
    async def scenario() -> None:
        made = metering(config(tenants=[ACME], state=AWAY))
        await made.start()
        with pytest.raises(StoreAway):
            await made.used("acme")
        with pytest.raises(StoreAway):
            await made.usage(None, 0)
        assert made.status({"acme"}).away
        assert await made.close(), "nothing was owed"

    asyncio.run(scenario())


def test_a_reload_that_brings_tenants_begins_to_keep_usage(tmp_path: Path):
    async def scenario() -> None:
        made = metering(config(), tmp_path / "forebay.yaml")
        await made.start()
        made.configure(config(tenants=[ACME]))
        assert type(made.meter) is LocalMeter
        assert await made.used("acme") == (0, 0, 0, 0, 0, 0.0, 0.0)
        assert await made.usage(None, 0) == []
        assert await made.close()

    asyncio.run(scenario())
    assert (tmp_path / "forebay-usage.db").exists()
