"""What a prompt's prefix is called: chained 64-bit hashes, one a block.

A block's hash depends on the block before it and, through the root, on everything that may not be
shared across: model and version, LoRA adapter, tenant salt. So one hash names a whole prefix, and
two prompts share as many leading hashes as they share leading blocks.

XXH3 (xxHash 0.8, seeded with the parent) takes 0.15 us a block, a keyed cryptographic hash ten
times that. All that a collision could do is send a request to the wrong endpoint: KV never moves by
our hashes. The root, where tenants are kept apart, is BLAKE2b.
"""

from __future__ import annotations

import sys
from array import array
from hashlib import blake2b
from struct import iter_unpack
from typing import TYPE_CHECKING, NewType, cast

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

BlockHash = NewType("BlockHash", int)
"""Unsigned, 64 bits."""

BYTES_PER_TOKEN = 4
"""Of text, where no tokenizer says better."""

_hash = xxhash.xxh3_64_intdigest


def root(*, model: str, version: str = "", adapter: str = "", salt: bytes = b"") -> BlockHash:
    """Return the parent of a first block: what may share a cache has the same root.

    `salt` is a tenant's, or empty where a pool shares its prefixes.
    """
    digest = blake2b(digest_size=8)
    for part in (model.encode(), version.encode(), adapter.encode(), salt):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return BlockHash(int.from_bytes(digest.digest(), "little"))


def chain_text(parent: BlockHash, text: bytes | memoryview, *, block_bytes: int) -> list[BlockHash]:
    """Hash text in blocks of `block_bytes`; a trailing part is a block of its own.

    The trailing part of a turn is never the prefix of the next turn's block, so it only ever hits
    when the same prompt comes again; that is common (retries, samples, fixed prompts).
    """
    hashes: list[int] = []
    value = int(parent)
    whole = len(text) - len(text) % block_bytes
    for (block,) in iter_unpack(f"{block_bytes}s", memoryview(text)[:whole]):  # half of slicing
        value = _hash(block, value)
        hashes.append(value)
    if whole < len(text):
        hashes.append(_hash(text[whole:], value))
    return cast("list[BlockHash]", hashes)


def root_of_tokens(*, adapter: str = "", salt: str = "") -> BlockHash:
    """Return the parent of a first block of token ids, which both requests and events can tell.

    Events name no model, so this holds within one pool and one base model of an endpoint; `salt` is
    what the engine is sent as `cache_salt`.
    """
    return root(model="tokens", adapter=adapter, salt=salt.encode())


def token_bytes(tokens: Iterable[int]) -> bytes:
    """Write token ids as they are hashed: four bytes each, little-endian.

    Raises TypeError and OverflowError for what are no token ids.
    """
    words = array("I", tokens)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def chain_tokens(parent: BlockHash, tokens: bytes, *, block_tokens: int) -> list[BlockHash]:
    """Hash token ids, written as `token_bytes` does, in blocks; a trailing part is one, too."""
    return chain_text(parent, tokens, block_bytes=4 * block_tokens)
