"""Prefixes of a pool: a prompt's blocks, who is expected to hold them, and what came of it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.policies.contracts import Route
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.blocks import BYTES_PER_TOKEN, BlockHash, chain_text, root
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned

if TYPE_CHECKING:
    from forebay.gateway.config.prefix import Prefix
    from forebay.policies.contracts import Outcome, Placement, Request

    from .intake import AnyBody

_CONVERSATIONS = frozenset({Route.CHAT, Route.MESSAGES, Route.RESPONSES})
_END = b"\x1e"
_MOST_ROOTS = 4096


class PoolPrefix:
    """What one pool knows of prefixes."""

    def __init__(self, section: Prefix) -> None:
        self.section = section
        self.index = Index()
        self.learned = Learned(self.index, capacity_blocks=section.capacity_blocks)
        self.score = StickyUntilSaturated(self.index, section.block_tokens, section.stickiness)
        self.predicted_tokens = 0
        """Of predicted hits, where requests were placed."""
        self._block_bytes = section.block_tokens * BYTES_PER_TOKEN
        self._roots: dict[tuple[str, bytes], BlockHash] = {}
        self._expected: dict[str, int] = {}

    def blocks(
        self, route: Route, body: AnyBody, *, model: str, salt: bytes
    ) -> tuple[BlockHash, ...]:
        """Return a prompt's block hashes; none for what is no prompt."""
        text = prompt_text(route, body)
        if not text:
            return ()
        key = (model, salt)
        parent = self._roots.get(key)
        if parent is None:
            if len(self._roots) >= _MOST_ROOTS:
                self._roots.clear()
            parent = self._roots[key] = root(model=model, salt=salt)
        return tuple(chain_text(parent, text, block_bytes=self._block_bytes))

    def longest(self, blocks: tuple[BlockHash, ...], prompt_tokens: int) -> int:
        """Return the tokens of the longest predicted hit anywhere."""
        return self._tokens(max(self.index.match(blocks).values(), default=0), prompt_tokens)

    def uncached(self, request: Request) -> int:
        """Return what is left to prefill where most of it lies, as things are now."""
        prompt = request.prompt_tokens_estimate
        return prompt - self.longest(request.blocks, prompt)

    def placed(self, placement: Placement) -> None:
        """Note where a prompt goes, and the hit that is predicted there."""
        request = placement.request
        if not request.blocks:
            return
        held = self.index.match(request.blocks).get(placement.endpoint, 0)
        hit = self._tokens(held, request.prompt_tokens_estimate)
        left = request.prompt_tokens_estimate - hit
        self.score.work.add(placement.endpoint, left, placement.placed)
        self._expected[request.id] = hit
        self.predicted_tokens += hit
        self.learned.placed(placement.endpoint, request.blocks)

    def expected(self, request_id: str) -> int | None:
        """Return the hit that was predicted for a request which is placed."""
        return self._expected.get(request_id)

    def released(self, placement: Placement, outcome: Outcome | None) -> None:
        """Learn from what the engine says it had cached, where it says so."""
        hit = self._expected.pop(placement.request.id, None)
        if hit is None or outcome is None or outcome.cached_tokens is None:
            return
        self.learned.reported(
            placement.endpoint, predicted_tokens=hit, cached_tokens=outcome.cached_tokens
        )

    def forget(self, endpoint: str) -> None:
        """Expect nothing of an endpoint any more."""
        self.learned.forget(endpoint)
        self.score.work.forget(endpoint)

    def _tokens(self, blocks: int, prompt_tokens: int) -> int:
        return min(blocks * self.section.block_tokens, prompt_tokens)


def tenant_salt(tenant: str, secret: bytes) -> bytes:
    """Return what keeps a tenant's prefixes apart: the same over restarts and replicas."""
    return blake2b(tenant.encode(), key=secret[:64], digest_size=16).digest()


def prompt_text(route: Route, body: AnyBody) -> bytes:
    """Write a prompt as one text that is equal where the model would see the same.

    Key order and white space of the JSON do not count; what an image is called does.
    """
    if route in _CONVERSATIONS:
        pieces: list[bytes] = []
        for name in ("system", "instructions", "tools"):
            if name in body.members:
                pieces += (_canonical(body.get(name)), _END)
        said = body.get("input" if route is Route.RESPONSES else "messages")
        if isinstance(said, list):
            for message in said:  # type: ignore[reportUnknownVariableType] - any JSON
                _write(message, pieces)
        elif said is not None:
            pieces.append(_canonical(said))
        return b"".join(pieces)
    if route is not Route.COMPLETIONS:
        return b""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[reportUnknownVariableType] - any JSON
    return b"" if prompt is None else _canonical(prompt)


def _write(message: Any, pieces: list[bytes]) -> None:
    """Write one message: who speaks, what is said, what is called."""
    if not isinstance(message, dict):
        pieces += (_canonical(message), _END)
        return
    role, content = message.get("role"), message.get("content")  # type: ignore[reportUnknownVariableType, reportUnknownMemberType] - any JSON
    pieces += (str(role).encode("utf-8", "replace"), b"\x1f", _canonical(content))  # type: ignore[reportUnknownArgumentType] - JSON
    rest = {k: v for k, v in message.items() if k not in ("role", "content")}  # type: ignore[reportUnknownVariableType] - JSON
    if rest:
        pieces.append(_canonical(rest))
    pieces.append(_END)


def _canonical(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, list) and len(value) == 1:  # type: ignore[reportUnknownArgumentType] - any JSON
        (part,) = value  # type: ignore[reportUnknownVariableType] - JSON
        if isinstance(part, dict) and part.keys() == {"type", "text"}:  # type: ignore[reportUnknownMemberType] - JSON
            return _canonical(part["text"])  # type: ignore[reportUnknownArgumentType] - text in a list of one is that text
    return msgspec.json.encode(value, order="deterministic")
