"""Chains of texts that go on: always what hashing from the beginning gives, and little of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.prefixcache import chains
from forebay.prefixcache.blocks import chain_text, root
from forebay.prefixcache.chains import Chains

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOTS = (root(model="m"), root(model="n"))
BLOCK, SPAN = 4, 3
TURN = st.tuples(
    st.integers(0, 5),  # the earlier text that it goes on from
    st.integers(0, 200),  # how much of that is kept
    st.one_of(st.binary(max_size=60), st.sampled_from((b"", b"a" * 12, b"a" * 50))),
)


@settings(deadline=None)
@given(st.lists(TURN, max_size=20), st.sampled_from((0, 500, 3000, 1 << 20)), st.integers(1, 2))
def test_texts_that_go_on_are_named_as_if_each_were_the_first(
    turns: list[tuple[int, int, bytes]], most_bytes: int, roots: int
):
    made = Chains(block_bytes=BLOCK, span=SPAN, most_bytes=most_bytes)
    texts = [b"", b"a" * 100]
    for number, (earlier, kept, more) in enumerate(turns):
        text = texts[-1 - earlier % len(texts)][:kept] + more
        texts.append(text)
        parent = ROOTS[number % roots]
        for _ in range(1 + number % 3):
            assert made.hashes(parent, text) == chain_text(parent, text, block_bytes=BLOCK)
        assert made.held_bytes <= most_bytes + 2 * (chains._PER_SPAN + SPAN * chains._PER_BLOCK)


class Counted:
    """Chains that tell how many bytes they remembered, by how they grew."""

    def __init__(self) -> None:
        self.chains = Chains(block_bytes=BLOCK, span=SPAN)
        self._span = chains._PER_SPAN + SPAN * chains._PER_BLOCK

    def spans(self, *texts: bytes) -> Sequence[int]:
        """Return how many whole spans were hashed and kept for each text."""
        counts: list[int] = []
        for text in texts:
            before = self.chains.held_bytes
            self.chains.hashes(ROOTS[0], text)
            counts.append((self.chains.held_bytes - before) // self._span)
        return counts


def test_a_turn_that_goes_on_is_hashed_only_where_it_is_new():
    text = bytes(range(120))
    turns = [text[:size] for size in (30, 60, 70, 96, 96, 120)]
    assert Counted().spans(*turns) == [0, 5, 0, 3, 0, 2]


def test_what_never_comes_again_leaves_one_mark():
    made = Chains(block_bytes=BLOCK, span=SPAN)
    for number in range(10):
        made.hashes(ROOTS[0], bytes([number]) * 1000)
    assert made.held_bytes == 10 * chains._PER_SPAN


def test_short_texts_leave_nothing():
    made = Chains(block_bytes=BLOCK, span=SPAN)
    for _ in range(3):
        made.hashes(ROOTS[0], b"x" * (2 * SPAN * BLOCK - 1))
    assert made.held_bytes == 0
