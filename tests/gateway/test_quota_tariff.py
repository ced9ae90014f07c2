"""Dates, headers and tariffs: what every meter has in common."""

from __future__ import annotations

from datetime import UTC, datetime

from forebay.gateway.config.sections import Config
from forebay.gateway.quota.tariff import Calendar, headers_of, tariffs_of
from forebay.policies.quota import Caps, Dates, Price


def test_the_calendar_turns_at_midnight_not_a_second_later():
    moments = [datetime(2026, 12, 31, 23, 59, 59, 600_000, tzinfo=UTC)]
    calendar = Calendar(lambda: moments[-1])
    assert calendar.dates(10.0) == Dates(20261231, 202612, 0.4, 0.4)
    moments.append(datetime(2027, 1, 1, tzinfo=UTC))
    assert calendar.dates(10.3).day == 20261231
    assert calendar.dates(10.4) == Dates(20270101, 202701, 86400.0, 31 * 86400.0)


def test_the_calendar_looks_at_the_clock_once_a_second():
    looks = list[datetime]()

    def now() -> datetime:
        looks.append(datetime(2026, 2, 28, 12, tzinfo=UTC))
        return looks[-1]

    calendar = Calendar(now)
    for tenth in range(25):
        calendar.dates(tenth / 10)
    assert len(looks) == 3
    assert calendar.dates(2.5).month_left_s == 12 * 3600.0


def test_a_day_begins_at_the_midnight_of_its_zone_however_long_it_is():
    moments = [datetime(2026, 10, 24, 22, 30, tzinfo=UTC)]
    calendar = Calendar(lambda: moments[-1])
    berlin = calendar.of("Europe/Berlin")
    assert (calendar.dates(0.0).day, berlin.dates(0.0)) == (
        20261024,
        Dates(20261025, 202610, 24.5 * 3600, (24.5 + 6 * 24) * 3600),  # 25 hours: winter comes
    )
    moments.append(datetime(2026, 10, 31, 23, 0, tzinfo=UTC))
    assert calendar.of("Europe/Berlin") is berlin
    assert (calendar.dates(2.0).month, berlin.dates(2.0).month) == (202610, 202611)


def test_headers_tell_only_of_limits_that_there_are():
    assert headers_of(Caps(), 5, 5) == ()
    assert headers_of(Caps(tokens=10), 5, 50) == (
        (b"x-ratelimit-limit-tokens", b"10"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"61s"),
    )
    assert headers_of(Caps(requests=3), 0, 0)[2] == (b"x-ratelimit-reset-requests", b"0s")


def test_a_tariff_is_what_the_tenants_section_says():
    config = Config.model_validate(
        {
            "version": 1,
            "pools": [
                {"name": "p", "models": ["m"], "endpoints": [{"name": "e", "engine": "sim"}]}
            ],
            "prices": {"m": {"prompt": 0.5, "output": 1.5}},
            "tenants": [
                {
                    "name": "acme",
                    "fail": "closed",
                    "limits": {"tokens_per_minute": "200k", "concurrent": 4, "money_per_day": 2.5},
                },
                {"name": "free"},
            ],
        }
    )
    tariffs = tariffs_of(config)
    acme, free = tariffs["acme"], tariffs["free"]
    assert acme.caps == Caps(tokens=200_000, concurrent=4, day_nano=2_500_000_000)
    assert (acme.fail_open, acme.limited, acme.prices) == (
        False,
        True,
        {"m": Price(prompt=0.5, output=1.5)},
    )
    assert (free.fail_open, free.limited) == (True, False)
