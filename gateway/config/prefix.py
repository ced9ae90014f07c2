"""How a pool looks at prefixes: the section `pools[].prefix`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .base import Count, Section


class Prefix(Section):
    """A request goes where its prefix already lies."""

    later: ClassVar[frozenset[str]] = frozenset({"tokenizer", "events", "evict"})
    later_values: ClassVar[dict[str, frozenset[str]]] = {"mode": frozenset({"auto", "exact"})}

    mode: Literal["learned", "off"] = Field(
        default="learned", description="learned: from where requests went and what engines report"
    )
    block_tokens: Count = Field(
        default=64, ge=16, le=1024, description="tokens of a block, four bytes of text each"
    )
    capacity_blocks: Count = Field(
        default=50_000, ge=64, description="most blocks that an endpoint is expected to hold"
    )
    stickiness: float = Field(
        default=16.0,
        ge=0,
        le=1000,
        description="how many tokens of an endpoint's recent work one cached token outweighs",
    )
    shared: bool = Field(
        default=False,
        description="tenants share cached prefixes; else each has its own, in engines that keep "
        "a cache_salt",
    )
