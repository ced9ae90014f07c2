"""How a pool looks at prefixes: the sections `pools[].prefix` and `endpoints[].events`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .base import Bytes, Count, Duration, Section, Share
from .values import check_zmq

Address = Annotated[
    str, BeforeValidator(lambda value: check_zmq(value) if isinstance(value, str) else value)
]


class Events(Section):
    """Where an engine publishes what its cache holds, or how often it is asked."""

    address: Address | None = Field(
        default=None, description="ZMQ address, as `tcp://10.0.0.1:5557`; not for trtllm"
    )
    poll: Duration | None = Field(
        default=None, ge=0.01, le=10, description="trtllm only: time between two questions"
    )
    bind: bool = Field(
        default=False,
        description="listen there: for an engine whose own endpoint names this gateway's host",
    )
    replay: Address | None = Field(
        default=None, description="the engine's `replay_endpoint`, where what was missed is had"
    )
    topic: str = Field(default="", max_length=256, description="only topics that begin so")
    ranks: int = Field(
        default=1, ge=1, le=64, description="data-parallel ranks, each a port higher"
    )


def read_events(value: object) -> object:
    """Take a bare address, or `poll`, for a section."""
    if value == "poll":
        return {"poll": "200ms"}
    return {"address": value} if isinstance(value, str) else value


EventsOrAddress = Annotated[Events, BeforeValidator(read_events)]


class Weights(Section):
    """What counts how much, under the policy `weighted`."""

    hit: float = Field(default=2.0, ge=0, le=1000, description="the cached share of a prompt")
    load: float = Field(default=1.0, ge=0, le=1000, description="few tokens in flight")
    kv: float = Field(default=0.5, ge=0, le=1000, description="room in the KV cache")


class Warm(Section):
    """Prefill hot prefixes on an endpoint that joins. Keeps their text in memory, nowhere else."""

    rate: float = Field(
        default=2.0,
        gt=0,
        le=4,
        description="prompts a second for each endpoint at most, one after the other",
    )
    most: Count = Field(default=64, ge=1, le=4096, description="hot prefixes kept")
    most_bytes: Bytes = Field(
        default=16 << 20, ge=1024, description="text of hot prefixes kept, all together"
    )
    uses: Count = Field(
        default=3,
        ge=2,
        le=1000,
        description="prompts that must have begun so before; what is less common is never kept",
    )
    limit: Duration = Field(
        default=60.0, gt=0, le=3600, description="longest time to warm one endpoint"
    )
    hold: Duration = Field(
        default=0.0,
        ge=0,
        le=600,
        description="keep it out of the rotation meanwhile, at most so long and only while nothing "
        "waits and others serve its models",
    )


class Guard(Section):
    """Slow intake while far less of the prompts is cached than usual."""

    below: Share = Field(
        default=0.5, gt=0, lt=1, description="of the usual hit rate: less is a collapse"
    )
    back: Share = Field(
        default=0.75, gt=0, le=1, description="of the usual hit rate: as much ends it"
    )
    least: Count = Field(
        default=20, ge=1, description="prompts in 15 s, below which nothing is concluded"
    )
    floor: Share = Field(
        default=0.25, gt=0, le=1, description="of the places in flight, that is always left"
    )
    longest: Duration = Field(default=600.0, gt=0, description="it ends after this anyway")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.below >= self.back:
            raise ValueError("'below' must be less than 'back'")
        return self


class Prefix(Section):
    """A request goes where its prefix already lies."""

    mode: Literal["auto", "exact", "learned", "off"] = Field(
        default="auto",
        description="exact: from engines' events; learned: from where requests went and what "
        "engines report; auto: the best that each endpoint has",
    )
    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="folder with the model's tokenizer.json and chat template, or `engine` to ask "
        "the engines; without it events tell of restarts only",
    )
    tokenize_budget: Duration = Field(
        default=0.2, gt=0, le=5, description="a prompt not cut into tokens by then goes without"
    )
    block_tokens: Count = Field(
        default=64, ge=16, le=1024, description="tokens of a block, four bytes of text each"
    )
    capacity_blocks: Count = Field(
        default=50_000, ge=64, description="most blocks that an endpoint is expected to hold"
    )
    evict: Literal["hybrid", "learned", "lfu", "lru"] = Field(
        default="hybrid", description="which expected blocks give way to others"
    )
    ttl: Duration = Field(
        default=3600.0, gt=0, description="expected blocks not used for this long are forgotten"
    )
    policy: Literal["hash_ring", "least_load", "sticky_until_saturated", "weighted"] = Field(
        default="sticky_until_saturated", description="who gets a request; see policies.md"
    )
    weights: Weights = Weights()
    stickiness: float = Field(
        default=16.0,
        ge=0,
        le=1000,
        description="how many tokens of an endpoint's recent work one cached token outweighs",
    )
    ttft_share: Share = Field(
        default=0.8,
        ge=0,
        le=1,
        description="of an SLA class's `ttft`: an endpoint whose first byte would come later than "
        "that, by its measured prefill rate, gives way; 0: none does",
    )
    version: str = Field(
        default="",
        max_length=256,
        description="of the weights, where they change under one name: prefixes of another are not "
        "looked for, and fade",
    )
    shared: bool = Field(
        default=False,
        description="tenants share cached prefixes; else each has its own, in engines that keep "
        "a cache_salt",
    )
    tenant_share: Share = Field(
        default=0.5,
        gt=0,
        le=1,
        description="of the blocks expected at an endpoint, what one tenant may have while others "
        "want the room; past it, its own give way first",
    )
    tenant_new_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="tokens a minute of each tenant's prompts that may be new; what is past it is "
        "not expected anywhere, and such a tenant is kept to `tenant_share` of the endpoints",
    )
    guard: Guard | None = Field(
        default=None, description="slow intake when the hit rate collapses; without it nothing does"
    )
    warm: Warm | None = Field(
        default=None,
        description="prefill hot prefixes on an endpoint that joins; without it no text is kept",
    )
