"""Frames of engines' KV events, and what their sequence numbers say."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.prefixcache.blocks import token_bytes
from forebay.prefixcache.events import (
    Batch,
    Cleared,
    Removed,
    Sequence,
    Stored,
    Verdict,
    is_end,
    read_event,
    read_frames,
)
from forebay.prefixcache.tiers import Tier

REFERENCE = bytes.fromhex(
    "93cb3ff0000000000000938aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739101b17061"
    "72656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920001aa626c6f636b5f73697a6502a76c6f72615f"
    "6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f6964"
    "780084a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739101a66d656469756da3475055"
    "a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)


def frames(number: int, content: Any) -> list[bytes]:
    body = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    return [b"kv", number.to_bytes(8, "big"), body]


def stored(**fields: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    return {**event, "token_ids": [5, 6], "block_size": 2, **fields}


def test_vllms_reference_payload_is_read():
    batch = read_frames(frames(7, REFERENCE))
    assert (batch.number, batch.unread) == (7, 0)
    assert batch.events == (
        Stored((1,), None, token_bytes([0, 1]), 2),
        Removed((1,), Tier.GPU),
        Cleared(),
    )


def test_events_as_arrays_of_older_releases_are_read():
    old = ["BlockStored", [3], 2, [8, 9], 2, None, "GPU"]
    assert read_event(old) == Stored((3,), 2, token_bytes([8, 9]), 2)
    assert read_event(["BlockRemoved", [3]]) == Removed((3,))
    assert read_event(["AllBlocksCleared"]) == Cleared()


def test_hashes_signed_unsigned_or_in_bytes_are_the_same():
    signed, unsigned = -2360060374177730597, (1 << 64) - 2360060374177730597
    raw = b"\x01" * 24 + unsigned.to_bytes(8, "big")
    for name in (signed, unsigned, raw):
        assert read_event({"type": "BlockRemoved", "block_hashes": [name]}) == Removed((unsigned,))


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, Tier.GPU),
        ({"medium": "GPU"}, Tier.GPU),
        ({"medium": "CPU"}, Tier.HOST),
        ({"medium": "CPU_PINNED"}, Tier.HOST),
        ({"medium": "DISK"}, Tier.DISK),
        ({"medium": "STORAGE"}, Tier.DISK),
        ({"medium": "CPU", "locality": "REMOTE"}, Tier.DISK),
    ],
)
def test_the_medium_says_on_which_tier_a_block_lies(fields: dict[str, str], tier: Tier):
    event = read_event(stored(**fields))
    assert isinstance(event, Stored)
    assert event.tier is tier


def test_a_salt_is_found_where_vllm_and_where_sglang_have_it():
    theirs = [read_event(stored(extra_keys=[["s"]])), read_event(stored(cache_salt="s"))]
    assert [event.salt for event in theirs if isinstance(event, Stored)] == ["s", "s"]
    adapted = read_event(stored(lora_name="ad", extra_keys=[["ad", "s"]]))
    assert isinstance(adapted, Stored)
    assert (adapted.adapter, adapted.salt, adapted.extra) == ("ad", "s", ())


def test_what_depends_on_an_image_says_so():
    event = read_event(stored(extra_keys=[[["mm-1", 0]]]))
    other = read_event(stored(extra_keys=[[["mm-2", 0]]]))
    assert isinstance(event, Stored)
    assert event.extra
    assert event != other


def test_groups_that_keep_only_the_end_of_a_prefix_say_nothing():
    assert read_event(stored(kv_cache_spec_sliding_window=1024)) is None


def test_pairs_of_tokens_are_read_by_their_first():
    event = read_event(stored(token_ids=[[5, 6], [6, 7]]))
    assert isinstance(event, Stored)
    assert event.tokens == token_bytes([5, 6])


@pytest.mark.parametrize(
    "odd",
    [
        stored(token_ids=[1]),
        stored(block_size=0),
        stored(block_size="2"),
        stored(token_ids=[-1, 2]),
        stored(token_ids=["a", "b"]),
        stored(block_hashes=None),
        stored(block_hashes=[None]),
        stored(medium=7),
        {"type": "BlockRemoved"},
        [],
        7,
        None,
        "BlockStored",
    ],
)
def test_an_event_that_cannot_be_read_is_counted_and_the_rest_is_kept(odd: Any):
    batch = read_frames(frames(0, [1.0, [odd, {"type": "AllBlocksCleared"}], 0]))
    assert batch.events == (Cleared(),)
    assert batch.unread == (0 if odd == "BlockStored" else 1)


def test_what_a_later_release_may_add_is_passed_over():
    batch = read_frames(frames(0, [1.0, [{"type": "BlockLoved", "by": 1}], 0, "more"]))
    assert (batch.events, batch.unread) == ((), 0)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_frames_are_a_batch_or_a_value_error(some: list[bytes]):
    with suppress(ValueError):
        assert isinstance(read_frames(some), Batch)


JSON = st.recursive(
    st.none()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text(max_size=4)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from([*stored(), "extra_keys", "group_idx", "lora_name", "medium", "locality"]),
        JSON,
    )
)
def test_any_map_is_an_event_or_counted(fields: dict[str, Any]):
    for kind in ("BlockStored", "BlockRemoved", "AllBlocksCleared"):
        batch = read_frames(frames(0, [1.0, [{**fields, "type": kind}]]))
        assert len(batch.events) + batch.unread <= 1


def test_the_end_of_a_replay_is_known():
    assert is_end([b"", b"", b"\xff" * 8, b""])
    assert not is_end([b"", b"kv", bytes(8), b"x"])
    assert not is_end([])


# -- sequence numbers ----------------------------------------------------------------------------


def batch(number: int, mark: int = 0, at: float = 0.0) -> Batch:
    return Batch(number, (), mark or number + 100, at)


def follow(*numbers: int) -> Sequence:
    sequence = Sequence()
    for number in numbers:
        assert sequence.judge(batch(number)) is Verdict.APPLY
        sequence.applied(batch(number))
    return sequence


def test_numbers_in_order_are_applied():
    follow(0, 1, 2)


def test_a_missing_number_is_a_gap():
    assert follow(0, 1).judge(batch(3)) is Verdict.GAP
    assert Sequence().judge(batch(4)) is Verdict.GAP


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_number_that_goes_back_is_another_process(number: int):
    assert follow(0, 1, 2).judge(batch(number, 9)) is Verdict.RESTARTED


def test_a_late_batch_is_no_new_process():
    sequence = Sequence()
    sequence.applied(batch(2, at=2.0))
    assert sequence.judge(batch(2, at=2.0)) is Verdict.SKIP
    assert sequence.judge(batch(0, at=1.0)) is Verdict.STRAY
    assert sequence.judge(batch(0, at=3.0)) is Verdict.RESTARTED


def test_what_was_replayed_before_it_came_is_skipped():
    sequence = follow(0)
    assert sequence.judge(batch(3)) is Verdict.GAP
    for number in (1, 2, 3, 4, 5):
        sequence.applied(batch(number))
    assert sequence.judge(batch(4)) is Verdict.SKIP
    assert sequence.judge(batch(5)) is Verdict.SKIP
    assert sequence.judge(batch(6)) is Verdict.APPLY


def test_another_batch_of_the_last_number_is_another_process():
    sequence = follow(0)
    sequence.judge(batch(2))
    sequence.applied(batch(2))
    sequence._live = 1
    assert sequence.judge(batch(2, 9)) is Verdict.RESTARTED


def test_after_a_lost_connection_fitting_numbers_prove_nothing():
    sequence = follow(0, 1)
    sequence.suspect = True
    assert sequence.judge(batch(2)) is Verdict.GAP
    assert sequence.is_same(batch(1))
    assert not sequence.is_same(batch(1, 9))
    sequence.applied(batch(2))
    assert sequence.judge(batch(3)) is Verdict.APPLY
