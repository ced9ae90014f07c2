"""What a prompt's prefix is called: chained 64-bit hashes, one a block.

A block's hash depends on the block before it and, through the root, on everything that may not be
shared across: model and version, LoRA adapter, tenant salt. So one hash names a whole prefix, and
two prompts share as many leading hashes as they share leading blocks.

XXH3 (xxHash 0.8, seeded with the parent) takes 0.15 us a block, a keyed cryptographic hash ten
times that. All that a collision could do is send a request to the wrong endpoint: KV never moves by
our hashes. The root, where tenants are kept apart, is BLAKE2b.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NewType

import xxhash

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


def chain_text(parent: BlockHash, text: bytes, *, block_bytes: int) -> list[BlockHash]:
    """Hash text in blocks of `block_bytes`; a trailing part is a block of its own.

    The trailing part of a turn is never the prefix of the next turn's block, so it only ever hits
    when the same prompt comes again; that is common (retries, samples, fixed prompts).
    """
    hashes: list[BlockHash] = []
    add, value = hashes.append, int(parent)
    for start in range(0, len(text), block_bytes):
        value = _hash(text[start : start + block_bytes], value)
        add(BlockHash(value))
    return hashes
