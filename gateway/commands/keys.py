"""`forebay keys`: make API keys for tenants."""

from __future__ import annotations

import argparse
import json
import re
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
    new.add_argument("--json", action="store_true", help="print one JSON object")
    new.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make one key and print it."""
    from forebay.gateway.keys import new_key

    key, digest = new_key()
    if arguments.json:
        print(json.dumps({"tenant": arguments.tenant, "key": key, "digest": digest}))
        return 0
    print(f"key for {arguments.tenant}, shown only now:\n\n  {key}\n")
    print("under tenants in the configuration:\n")
    print(f'  - name: {arguments.tenant}\n    keys: ["{digest}"]')
    return 0


def _tenant(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no tenant's name (1 to 63 letters, digits, '.', '_' or '-')"
        )
    return text
