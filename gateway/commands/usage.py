"""`forebay usage`: who used what, by tenant, model and day."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .asking import KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.gateway.config.sections import Config
    from forebay.gateway.quota.usage_rows import Row

    from .arguments import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "usage",
        help="say who used what",
        description="Say who used what, by tenant, model and UTC day: from the ledger that a "
        f"configuration names, from a ledger's file, or from a running gateway. {KEY} holds the "
        "admin key, where there is one.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-c", "--config", metavar="FILE", type=Path, help="read the ledger of this configuration"
    )
    source.add_argument("--ledger", metavar="FILE", type=Path, help="read this SQLite file")
    source.add_argument("--admin", metavar="URL", help="ask this admin port (http://host:8081)")
    parser.add_argument("--tenant", metavar="NAME", help="of this tenant only")
    parser.add_argument(
        "--since", metavar="DAY", type=_day, help="from this UTC day on (2026-11-01)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--csv", action="store_true", help="print CSV, names first")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the rows and print them."""
    from forebay.gateway import usage
    from forebay.gateway.config.errors import ConfigErrors

    from .check import lines

    try:
        rows = _rows(arguments)
    except ConfigErrors as errors:
        print(lines(arguments.config, errors), file=sys.stderr)
        return 1
    if not rows and arguments.tenant is not None:
        _tell_of_others(arguments)
    if arguments.json:
        print(usage.as_json(rows))
    elif arguments.csv:
        print(usage.as_csv(rows), end="")
    else:
        print(usage.as_table(rows))
    return 0


def _tell_of_others(arguments: argparse.Namespace) -> None:
    """Say that a tenant has no usage at all, where it is so: its name may be wrong."""
    from forebay.gateway.config.suggest import did_you_mean

    whole = argparse.Namespace(**{**vars(arguments), "tenant": None, "since": None})
    names = sorted({row.tenant for row in _rows(whole)})
    if arguments.tenant in names:
        return
    others = did_you_mean(arguments.tenant, names) or f"; there is of: {', '.join(names)}"
    hint = others if names else "; none is kept at all"
    print(f"forebay usage: no usage of tenant '{arguments.tenant}'{hint}", file=sys.stderr)


def _rows(arguments: argparse.Namespace) -> Sequence[Row]:
    from forebay.gateway.config import load
    from forebay.gateway.quota.usage_rows import day_number

    if arguments.admin is not None:
        return _asked(arguments.admin, tenant=arguments.tenant, since=arguments.since)
    tenants = None if arguments.tenant is None else [arguments.tenant]
    since = day_number(arguments.since) if arguments.since else 0
    if arguments.ledger is not None:
        return _read(arguments.ledger, tenants, since)
    return _kept(arguments.config, load.read(arguments.config), tenants, since)


def _kept(file: Path, config: Config, tenants: list[str] | None, since: int) -> Sequence[Row]:
    """Read the ledger that a configuration names."""
    from forebay.gateway.quota.metering import ledger_path
    from forebay.policies.contracts import ForebayError

    if config.state.url is not None:
        known = [tenant.name for tenant in config.tenants]
        return _in_redis(config.state.url.get_secret_value(), known, tenants, since)
    ledger = ledger_path(config, file)
    if ledger is None:
        raise ForebayError("without tenants no usage is kept; add some, or set state.ledger")
    return _read(ledger, tenants, since)


def _read(file: Path, tenants: list[str] | None, since: int) -> Sequence[Row]:
    import sqlite3

    from forebay.gateway.quota.ledger_sqlite import SqliteBook
    from forebay.policies.contracts import ForebayError

    if not file.exists():
        raise ForebayError(f"{file}: there is no such file; a gateway with tenants makes it")
    if not os.access(file, os.R_OK):
        raise ForebayError(f"{file}: may not be read by this user")
    try:
        return SqliteBook(file).read(tenants, since)
    except sqlite3.Error as error:
        raise ForebayError(f"{file}: is no usage ledger ({error})") from error


def _in_redis(url: str, known: list[str], tenants: list[str] | None, since: int) -> Sequence[Row]:
    import asyncio

    from forebay.gateway.quota.ledger_redis import RedisBook
    from forebay.policies.contracts import ForebayError

    async def read() -> Sequence[Row]:
        book = RedisBook(url, known)
        try:
            return await book.rows(tenants, since, 99999999)
        finally:
            await book.close()

    try:
        return asyncio.run(read())
    except OSError as error:
        raise ForebayError("the ledger in Redis cannot be read; is state.url right?") from error


def _asked(url: str, **wanted: str | None) -> Sequence[Row]:
    """Ask a running gateway."""
    import msgspec

    from forebay.gateway.quota.usage_rows import Row

    from .asking import ask

    params = {name: value for name, value in wanted.items() if value is not None}
    return msgspec.convert(ask("GET", url, "/usage", params=params), dict[str, list[Row]])["rows"]


def _day(text: str) -> str:
    from datetime import date

    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no day; write 2026-11-01") from None
