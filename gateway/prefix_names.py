"""What a pool's prompts are called: chains of block hashes, by their text or by their tokens."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from forebay.prefixcache.blocks import BYTES_PER_TOKEN, BlockHash, root, root_of_tokens
from forebay.prefixcache.chains import Chains

from .prefix_text import prompt_text

if TYPE_CHECKING:
    from forebay.policies.contracts import Route

    from .intake import AnyBody

_MOST_ROOTS = 4096


class Names:
    """Names the prompts of one pool."""

    def __init__(self, *, block_tokens: int, version: str = "") -> None:
        """Take how long blocks are, and the version of the weights behind the models' names."""
        self.block_bytes = block_tokens * BYTES_PER_TOKEN
        """Of a block of text."""
        self._chains = Chains(block_bytes=self.block_bytes)
        """Of text and of tokens: an id has as many bytes as a token of text is taken to have."""
        self._version = version
        self._roots: dict[tuple[bool, str, bytes], BlockHash] = {}
        """By whether tokens follow, model (of tokens: adapter) and salt."""
        self._adapters: dict[str, str] = {}

    def renew(self, version: str) -> None:
        """Name prompts by another version from now on."""
        self._version = version
        self._roots.clear()

    def adapter(self, model: str, name: str) -> None:
        """Take in that a model is an adapter, and what events call it."""
        self._adapters[model] = name

    def by_text(
        self, route: Route, body: AnyBody, *, model: str, salt: bytes
    ) -> tuple[BlockHash, ...]:
        """Return a prompt's block hashes, by its text; none for what is no prompt."""
        text = prompt_text(route, body)
        if not text:
            return ()
        parent = self._root((False, model, salt))
        return tuple(self._chains.hashes(parent, text))

    def by_tokens(self, tokens: bytes, *, model: str, salt: bytes) -> tuple[BlockHash, ...]:
        """Return a prompt's block hashes, by its tokens (`blocks.token_bytes`)."""
        parent = self._root((True, self._adapters.get(model, ""), salt))
        return tuple(self._chains.hashes(parent, tokens))

    def _root(self, key: tuple[bool, str, bytes]) -> BlockHash:
        found = self._roots.get(key)
        if found is not None:
            return found
        if len(self._roots) >= _MOST_ROOTS:
            self._roots.clear()
        of_tokens, name, salt = key
        if of_tokens:
            made = root_of_tokens(adapter=name, salt=salt.hex())
        else:
            made = root(model=name, version=self._version, salt=salt)
        self._roots[key] = made
        return made


def tenant_salt(tenant: str, secret: bytes) -> bytes:
    """Return what keeps a tenant's prefixes apart: the same over restarts and replicas."""
    return blake2b(tenant.encode(), key=secret[:64], digest_size=16).digest()
