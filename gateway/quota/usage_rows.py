"""Usage as it is kept and told: by tenant, model and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from forebay.policies.quota import NANO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Row(Struct, frozen=True, kw_only=True):
    """What one tenant used of one model on one day."""

    tenant: str
    model: str
    day: str
    """As 2026-11-29, UTC."""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens."""
    output_tokens: int = 0
    cost: float = 0.0
    """In the money of the prices."""


Key = tuple[str, str, int]
"""Tenant, model, day as 20261129."""
Sums = list[int]
"""Requests, prompt, cached and output tokens, and nano of money."""


class Book(Protocol):
    """Where usage is kept. Any of these may raise OSError or sqlite3.Error."""

    tenants: Sequence[str]
    """Whom `rows` tells of where it is not told whom to, if the book cannot list them itself."""

    async def write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        """Add to what is there, once for each name."""
        ...

    async def rows(self, tenants: Sequence[str] | None, since: int, until: int) -> list[Row]:
        """Return what is there of these days, both included, in the order of day and names."""
        ...

    async def close(self) -> None:
        """Let go of what is open."""
        ...


def row_of(key: Key, sums: Sequence[int]) -> Row:
    """Word sums as a row."""
    tenant, model, day = key
    return Row(
        tenant=tenant,
        model=model,
        day=f"{day // 10000}-{day // 100 % 100:02}-{day % 100:02}",
        requests=sums[0],
        prompt_tokens=sums[1],
        cached_tokens=sums[2],
        output_tokens=sums[3],
        cost=sums[4] / NANO,
    )


def day_number(day: str) -> int:
    """Return 2026-11-29 as 20261129. Raises ValueError."""
    from datetime import date  # noqa: PLC0415 - only who reads usage needs it

    return int(date.fromisoformat(day).strftime("%Y%m%d"))


def spent(rows: Sequence[Row], day: int, month: int) -> dict[str, tuple[int, int, int, int]]:
    """Return each tenant's tokens and nano of a day, and of its month, as counters take them."""
    found: dict[str, list[int]] = {}
    for row in rows:
        number = int(row.day.replace("-", ""))
        if number // 100 != month:
            continue
        sums = found.setdefault(row.tenant, [0, 0, 0, 0])
        tokens, nano = row.prompt_tokens + row.output_tokens, round(row.cost * NANO)
        if number == day:
            sums[0] += tokens
            sums[1] += nano
        sums[2] += tokens
        sums[3] += nano
    return {tenant: (s[0], s[1], s[2], s[3]) for tenant, s in found.items()}
