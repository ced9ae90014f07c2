"""Gives pools what they look at prefixes by: a tokenizer, and their endpoints' events."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.adapters.base import Call
from forebay.adapters.trtllm import TrtLlm
from forebay.policies.contracts import ConfigError, EngineFailed, Route

from .extras import is_there, needs
from .kv_events.feed import Feed
from .kv_events.messages import Watch
from .kv_events.polling import Alone, Poller
from .prompts.service import EngineCutter, LocalCutter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import httpx

    from forebay.gateway.config import sections
    from forebay.gateway.config.prefix import Events, Prefix

    from .endpoint import Endpoint
    from .pools import Pool
    from .prefix import PoolPrefix
    from .prefix_sharing import Sharing
    from .prompts.service import Cutter

ENGINE = "engine"
"""What `tokenizer` is where engines are asked."""
_CUTTING = ("vllm", "sglang")
_ALL = ("tcp://*:", "tcp://[::]:")
"""How addresses begin that are all of this host's: nothing can be reached there."""


class Attention:
    """Keeps tokenizers and watched events in step with the pools, over reloads."""

    def __init__(self, http: Callable[[Endpoint], httpx.AsyncClient]) -> None:
        self.feed: Feed | None = None
        self.sharing: Sharing | None = None
        """With other replicas, where there is a store and a pool looks at prefixes."""
        self._pools: tuple[Pool, ...] = ()
        self._http = http
        self._cutters: dict[PoolPrefix, Cutter] = {}
        self._watched: dict[tuple[PoolPrefix, Endpoint], tuple[Events, int]] = {}
        self._pollers: dict[int, Poller] = {}
        """By ticket, where an engine has to be asked."""
        self._closing = set[asyncio.Task[None]]()

    def attend(self, pools: Iterable[Pool], store: str | None = None) -> None:
        """Look at what the pools are now; `store` is the address of the replicas' Redis."""
        self._pools = pools = tuple(pools)
        known = {pool.prefix: pool for pool in pools if pool.prefix is not None}
        for prefix in self._cutters.keys() - known.keys():
            self._cutters.pop(prefix).close()
        for prefix, pool in known.items():
            # How it cuts depends on the engines, which a name may have none of as yet.
            if prefix not in self._cutters and pool.endpoints and wants_cutter(prefix):
                prefix.cutter = self._cutters[prefix] = self._make_cutter(pool, prefix)
        if store is not None and known:
            self._share(store)
        wanted = {
            (prefix, endpoint): endpoint.section.events
            for prefix, pool in known.items()
            for endpoint in pool.endpoints.values()
            if endpoint.section.events is not None
        }
        for key, (section, ticket) in tuple(self._watched.items()):
            if wanted.get(key) != section:
                del self._watched[key]
                key[0].unlisten(key[1].name)
                self._unwatch(ticket)
        for key, section in wanted.items():
            if key not in self._watched:
                self._watched[key] = (section, self._watch(known[key[0]].name, *key, section))

    def _share(self, store: str) -> None:
        if self.sharing is None:
            # redis takes 100 ms to import, so only who shares pays for it.
            from .prefix_sharing import Sharing  # noqa: PLC0415 - see above

            self.sharing = Sharing(store, lambda: self._pools)
            self.sharing.start()
        self.sharing.attend()

    async def close(self) -> None:
        """Stop the reader, the tokenizers and the sharing."""
        for ticket in tuple(self._pollers):
            self._stop_asking(ticket)
        await asyncio.gather(*self._closing)
        if self.sharing is not None:
            await self.sharing.close()
        for cutter in self._cutters.values():
            cutter.close()
        if self.feed is not None:
            await self.feed.close()

    def _watch(self, pool: str, prefix: PoolPrefix, endpoint: Endpoint, section: Events) -> int:
        if self.feed is None:
            self.feed = Feed()
        listener = prefix.listen(endpoint.name)
        block_tokens = prefix.section.block_tokens
        ticket = self.feed.watch(partial(watch_of, section, block_tokens), listener)
        listener.engine_restarted = partial(self.feed.restarted, ticket)
        if section.poll is not None:
            shared = self.sharing
            self._pollers[ticket] = Poller(
                partial(self._take, endpoint),
                partial(self.feed.answered, ticket),
                endpoint=endpoint.name,
                every_s=section.poll,
                turn=Alone() if shared is None else shared.turn(pool, endpoint.name),
            )
        return ticket

    async def _take(self, endpoint: Endpoint) -> bytes | None:
        adapter = endpoint.adapter
        assert isinstance(adapter, TrtLlm)  # as the file was checked for
        if self.feed is None or self.feed.is_behind():
            return b""  # what is not taken stays in the engine's buffer
        return await adapter.take_events(self._http(endpoint), endpoint.target)

    def _unwatch(self, ticket: int) -> None:
        self._stop_asking(ticket)
        if self.feed is not None:
            self.feed.drop(ticket)

    def _stop_asking(self, ticket: int) -> None:
        poller = self._pollers.pop(ticket, None)
        if poller is not None:
            task = asyncio.get_running_loop().create_task(poller.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _make_cutter(self, pool: Pool, prefix: PoolPrefix) -> Cutter:
        section = prefix.section
        assert section.tokenizer is not None
        if section.tokenizer == ENGINE:
            return EngineCutter(_Asking(pool, self._http), budget_s=section.tokenize_budget)
        kinds = {endpoint.section.engine for endpoint in pool.endpoints.values()}
        dialect = "sglang" if "sglang" in kinds and "vllm" not in kinds else "vllm"
        from .prompts.local import load  # noqa: PLC0415 - only who cuts here

        return LocalCutter(
            partial(load, section.tokenizer, dialect=dialect), budget_s=section.tokenize_budget
        )


def wants_cutter(prefix: PoolPrefix) -> bool:
    """Tell whether prompts are to be cut into tokens."""
    return prefix.section.tokenizer is not None and prefix.section.mode in ("auto", "exact")


def check(pool: sections.Pool) -> None:
    """Raise ConfigError where a pool's tokenizer cannot be used; it is read only later."""
    fault = None if pool.prefix is None else tokenizer_fault(pool.prefix)
    if fault is not None:
        raise ConfigError(f"pool {pool.name}: {fault}")


def tokenizer_fault(prefix: Prefix) -> str | None:
    """Return why a tokenizer cannot be used; None where it can, or none is."""
    if prefix.mode == "off" or prefix.tokenizer in (None, ENGINE):
        return None
    path = Path(prefix.tokenizer)
    try:
        file = path if path.is_file() else path / "tokenizer.json"
        if not file.is_file():
            return f"there is no tokenizer at {str(file)!r}"
    except OSError as error:
        return f"the tokenizer in {str(path)!r} cannot be read: {(error.strerror or '').lower()}"
    if not is_there("tokenizer"):
        asking = "; or ask the engines (tokenizer: engine)"
        return needs("a tokenizer in files", "tokenizer") + asking
    return None


def watch_of(section: Events, block_tokens: int, ticket: int) -> Watch:
    """Write what the reader is told of an endpoint."""
    if section.address is None:
        return Watch(ticket, (), False, (), "", block_tokens)
    ranks = range(section.ranks)
    return Watch(
        ticket,
        tuple(shifted(section.address, rank) for rank in ranks),
        section.bind or section.address.startswith(_ALL),
        () if section.replay is None else tuple(shifted(section.replay, rank) for rank in ranks),
        section.topic,
        block_tokens,
    )


def shifted(address: str, rank: int) -> str:
    """Return the address of a data-parallel rank, as engines count ports."""
    if not rank:
        return address
    if address.startswith("ipc://"):
        return f"{address}_dp{rank}"
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}"


class _Asking:
    """Asks the pool's engines by turns."""

    def __init__(self, pool: Pool, http: Callable[[Endpoint], httpx.AsyncClient]) -> None:
        self._pool = pool
        self._http = http
        self._turns = count()

    async def __call__(self, _route: Route, body: bytes) -> bytes:
        """Return an engine's answer; raises EngineFailed or what httpx raises."""
        able = [
            e
            for e in self._pool.endpoints.values()
            if e.view.usable and e.section.engine in _CUTTING
        ]
        if not able:
            raise EngineFailed("no endpoint can cut prompts now")
        endpoint = able[next(self._turns) % len(able)]
        model = self._pool.engine_model(next(iter(self._pool.models)))
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        call = Call("0" * 32, Route.TOKENIZE, "POST", Route.TOKENIZE.value, model, members)
        said = endpoint.adapter.translate(call)
        sent = {**members, **{name: msgspec.Raw(value) for name, value in said.set.items()}}
        answer = await self._http(endpoint).post(
            endpoint.target.url + said.path,
            content=msgspec.json.encode(sent),
            headers={**endpoint.target.headers, "content-type": "application/json"},
        )
        if answer.status_code != 200:
            raise EngineFailed(f"endpoint {endpoint.name} answered {answer.status_code}")
        return answer.content
