"""Who calls: API keys, or tokens of an issuer, to tenants.

A key is `fb_<id>_<random>`: the id may be shown to say which key is meant, the random part has 256
bits. Only SHA-256 digests are kept, so a lookup is one hash and one dict access (about 1 us), and
what it takes does not depend on how much of a key is right. A slow hash would add nothing: nobody
can guess 256 bits, and each request would pay for it.
"""

from __future__ import annotations

import secrets
import time
from hashlib import sha256
from typing import TYPE_CHECKING

from forebay.gateway.config.sections import Tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .tokens import Tokens, Unverified

OPEN = Tenant.model_construct(name="default", debug_headers=True)
"""Whom all callers are while the configuration names no tenants."""
FOREVER = float("inf")

_LONGEST = 512
_BEARER = b"bearer "


class Grant:
    """What a good key or token says: who calls, and until when (Unix time)."""

    __slots__ = ("tenant", "until")

    def __init__(self, tenant: Tenant, until: float = FOREVER) -> None:
        self.tenant = tenant
        self.until = until


_OPEN = Grant(OPEN)


class Keys:
    """Finds tenants by the keys that callers show. Built anew for each configuration."""

    __slots__ = ("_by_digest", "_clock", "_open", "_tokens")

    def __init__(
        self,
        tenants: Iterable[Tenant],
        *,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tokens` knows those of an issuer; `clock` tells Unix time."""
        tenants = tuple(tenants)
        self._by_digest = {
            bytes.fromhex(key.digest.removeprefix("sha256:")): _grant(tenant, key.expires)
            for tenant in tenants
            for key in tenant.keys
        }
        self._open = not tenants
        self._tokens = tokens
        self._clock = clock

    def find(
        self, authorization: bytes | None, x_api_key: bytes | None
    ) -> Grant | Unverified | None:
        """Return whose key a request shows, None when it shows no valid one. Never raises.

        A bearer token counts before `x-api-key`; any other kind of authorization is passed over.
        """
        if self._open:
            return _OPEN
        key, bearer = x_api_key, False
        if authorization is not None and authorization[:7].lower() == _BEARER:
            key, bearer = authorization[7:].strip(), True
        if key is None:
            return None
        grant = self._by_digest.get(sha256(key).digest()) if len(key) <= _LONGEST else None
        if grant is None:
            return self._tokens.find(key) if bearer and self._tokens is not None else None
        if grant.until is not FOREVER and grant.until <= self._clock():
            return None
        return grant


def _grant(tenant: Tenant, expires: float | None) -> Grant:
    return Grant(tenant, FOREVER if expires is None else expires)


def new_key() -> tuple[str, str]:
    """Return a new key, to be shown once, and the digest line for the configuration."""
    key = f"fb_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
    return key, digest_of(key)


def digest_of(key: str) -> str:
    """Return the line that stands for a key in the configuration."""
    return "sha256:" + sha256(key.encode()).hexdigest()
