"""Who calls: API keys to tenants.

A key is `fb_<id>_<random>`: the id may be shown to say which key is meant, the random part has 256
bits. Only SHA-256 digests are kept, so a lookup is one hash and one dict access (about 1 us), and
what it takes does not depend on how much of a key is right. A slow hash would add nothing: nobody
can guess 256 bits, and each request would pay for it.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

from forebay.gateway.config.sections import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterable

OPEN = Tenant.model_construct(name="default", keys=(), models=None, debug_headers=True)
"""Whom all callers are while the configuration names no tenants."""

_LONGEST = 512
_BEARER = b"bearer "


class Keys:
    """Finds tenants by the keys that callers show. Built anew for each configuration."""

    __slots__ = ("_by_digest", "_open")

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._by_digest = {
            bytes.fromhex(digest.removeprefix("sha256:")): tenant
            for tenant in tenants
            for digest in tenant.keys
        }
        self._open = not self._by_digest

    def find(self, authorization: bytes | None, x_api_key: bytes | None) -> Tenant | None:
        """Return whose key a request shows, None when it shows no valid one. Never raises.

        A bearer token counts before `x-api-key`; any other kind of authorization is passed over.
        """
        if self._open:
            return OPEN
        key = x_api_key
        if authorization is not None and authorization[:7].lower() == _BEARER:
            key = authorization[7:].strip()
        if key is None or len(key) > _LONGEST:
            return None
        return self._by_digest.get(sha256(key).digest())


def new_key() -> tuple[str, str]:
    """Return a new key, to be shown once, and the digest line for the configuration."""
    key = f"fb_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
    return key, digest_of(key)


def digest_of(key: str) -> str:
    """Return the line that stands for a key in the configuration."""
    return "sha256:" + sha256(key.encode()).hexdigest()
