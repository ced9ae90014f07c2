"""`forebay keys`: make API keys for tenants."""

from __future__ import annotations

import argparse
import json
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .arguments import Commands

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "keys", help="make API keys", description="Make API keys for tenants."
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    new = actions.add_parser(
        "new",
        help="make a key for a tenant",
        description="Make a key for a tenant. The key is printed once and kept nowhere; the "
        "configuration gets its digest.",
    )
    new.add_argument("tenant", metavar="TENANT", type=_tenant, help="the tenant's name")
    new.add_argument(
        "--expires", metavar="DAY", type=_moment, help="a UTC day (2027-12-31) or a time"
    )
    new.add_argument("--note", type=_note, help="whose or what for; up to 200 characters")
    new.add_argument("--json", action="store_true", help="print one JSON object")
    new.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make one key and print it."""
    from forebay.gateway.keys import new_key

    key, digest = new_key()
    line = _line(digest, arguments.expires, arguments.note)
    if arguments.json:
        told = {"tenant": arguments.tenant, "key": key, "digest": digest}
        print(json.dumps({**told, "expires": arguments.expires, "note": arguments.note}))
        return 0
    print(f"key for {arguments.tenant}, shown only now:\n\n  {key}\n")
    print("under tenants in the configuration:\n")
    print(f"  - name: {arguments.tenant}\n    keys: [{line}]")
    return 0


def _line(digest: str, expires: str | None, note: str | None) -> str:
    """Return the entry under `keys`, as short as it can be."""
    more = {"expires": expires, "note": note}
    pairs = [f"{name}: {json.dumps(value)}" for name, value in more.items() if value is not None]
    quoted = f'"{digest}"'
    return f"{{digest: {', '.join([quoted, *pairs])}}}" if pairs else quoted


def _moment(text: str) -> str:
    from forebay.gateway.config.tenancy import read_moment

    try:
        moment = read_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    assert isinstance(moment, float)  # of a text
    if moment <= time.time():
        raise argparse.ArgumentTypeError(f"'{text}' has passed: nobody could use the key")
    return text


def _note(text: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise argparse.ArgumentTypeError("a note is up to 200 printable characters")
    return text


def _tenant(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no tenant's name (1 to 63 letters, digits, '.', '_' or '-')"
        )
    return text
