"""Chained hashes: what makes two prefixes one, and what keeps them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.prefixcache.blocks import chain_text, root

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = root(model="m")


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the leading hashes that two chains have in common."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@settings(deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=200), st.binary(max_size=200))
def test_two_texts_share_as_many_hashes_as_leading_blocks(common: bytes, a: bytes, b: bytes):
    one, other = common + a, common + b
    chains = [chain_text(ROOT, text, block_bytes=16) for text in (one, other)]
    blocks = [[t[i : i + 16] for i in range(0, len(t), 16)] for t in (one, other)]
    assert [len(chain) for chain in chains] == [len(cut) for cut in blocks]
    same = next(
        (n for n, (x, y) in enumerate(zip(*blocks, strict=False)) if x != y),
        min(map(len, blocks)),
    )
    assert shared(*chains) == same


def test_the_trailing_part_is_a_block_of_its_own():
    whole, part = b"x" * 32, b"x" * 40
    assert len(chain_text(ROOT, part, block_bytes=16)) == 3
    assert chain_text(ROOT, part, block_bytes=16)[:2] == chain_text(ROOT, whole, block_bytes=16)


def test_a_hash_names_the_whole_prefix_before_it():
    one = chain_text(ROOT, b"a" * 16 + b"z" * 16, block_bytes=16)
    other = chain_text(ROOT, b"b" * 16 + b"z" * 16, block_bytes=16)
    assert one[1] != other[1]


def test_roots_keep_models_versions_adapters_and_tenants_apart():
    roots = [
        root(model="m"),
        root(model="n"),
        root(model="m", version="2"),
        root(model="m", adapter="2"),
        root(model="m", salt=b"2"),
        root(model="m2"),
    ]
    assert len(set(roots)) == len(roots)
    assert root(model="m", salt=b"2") == roots[4]


def test_parts_of_a_root_do_not_run_into_each_other():
    assert root(model="ab", version="c") != root(model="a", version="bc")
