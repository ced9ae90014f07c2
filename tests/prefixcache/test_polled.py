"""What TensorRT-LLM answers when it is asked for its events, in the shapes that it documents."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.prefixcache.blocks import token_bytes
from forebay.prefixcache.events import Cleared, Moved, Removed, Stored, Verdict
from forebay.prefixcache.polled import Numbers, Told, read_answer
from forebay.prefixcache.tiers import Tier


def block(name: int | str, *tokens: int, level: int = 0, **more: Any) -> dict[str, Any]:
    told = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens]
    shape = {"type": "stored_block", "block_hash": name, "tokens": told, "cache_level": level}
    return {**shape, "priority": 35, **more}


def answer(*data: dict[str, Any], first: int = 0, **more: Any) -> bytes:
    items = [
        {"event_id": first + n, "data": each, "window_size": 4096, **more}
        for n, each in enumerate(data)
    ]
    return json.dumps(items).encode()


def read(*data: dict[str, Any], **more: Any) -> list[Any]:
    told, unread = read_answer(answer(*data, **more))
    assert unread == 0
    return [event for one in told for event in one.events]


def test_every_kind_of_event_is_read():
    told, unread = read_answer(
        answer(
            {"type": "created", "num_blocks_per_cache_level": [100, 10]},
            {"type": "stored", "parent_hash": None, "blocks": [block(7, 1, 2), block(8, 3, 4)]},
            {"type": "updated", "block_hash": 8, "cache_level": moved(0, 1), "priority": None},
            {"type": "updated", "block_hash": 8, "cache_level": None, "priority": None},
            {"type": "removed", "block_hashes": [8, 7]},
            first=3,
            attention_dp_rank=1,
        )
    )
    assert unread == 0
    assert told == [
        Told(3, 1, 4096, (Cleared(),)),
        Told(4, 1, 4096, (Stored((7, 8), None, token_bytes([1, 2, 3, 4]), 2),)),
        Told(5, 1, 4096, (Moved(8, Tier.GPU, Tier.HOST),)),
        Told(6, 1, 4096, ()),
        Told(7, 1, 4096, (Removed((8, 7)),)),
    ]


def moved(before: int, after: int) -> dict[str, Any]:
    return {"type": "event_diff", "new_value": after, "old_value": before}


def test_a_chain_is_cut_where_its_level_or_the_size_of_its_blocks_changes():
    blocks = [block(1, 1, 2), block(2, 3, 4, level=1), block(3, 5, level=1)]
    assert read({"type": "stored", "parent_hash": 9, "blocks": blocks}) == [
        Stored((1,), 9, token_bytes([1, 2]), 2),
        Stored((2,), 1, token_bytes([3, 4]), 2, tier=Tier.HOST),
        Stored((3,), 2, token_bytes([5]), 1, tier=Tier.HOST),
    ]


def test_hashes_in_hexadecimal_and_of_layer_groups_are_told_apart():
    (plain,) = read({"type": "removed", "block_hashes": ["f" * 48 + "00000000000000ff"]})
    assert plain == Removed((255,))
    (grouped,) = read({"type": "removed", "block_hashes": [255]}, layer_group_id=1)
    assert grouped != plain


@pytest.mark.parametrize("keys", [[["mm-1", 0]], None, []])
def test_what_depends_on_an_image_says_so(keys: Any):
    (event,) = read({"type": "stored", "blocks": [block(1, 1, 2, mm_keys=keys)]})
    assert bool(event.extra) is bool(keys)


def test_tokens_of_a_prompt_table_are_not_those_of_the_text():
    odd = block(1, 1, 2)
    odd["tokens"][0]["token_extra_id"] = 5
    (event,) = read({"type": "stored", "blocks": [odd]})
    assert event.extra


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "stored", "blocks": [block(1)]},
        {"type": "stored", "blocks": [block(1, -1)]},
        {"type": "stored", "blocks": [block(1, 1 << 40)]},
        {"type": "stored", "blocks": [block(1, 1, level=-1)]},
        {"type": "stored", "blocks": [block("no hash", 1)]},
        {"type": "stored", "blocks": 7},
        {"type": "removed", "block_hashes": [None]},
        {"type": 7},
        {},
    ],
)
def test_an_event_that_cannot_be_read_is_counted_and_the_rest_is_kept(odd: dict[str, Any]):
    told, unread = read_answer(answer(odd, {"type": "removed", "block_hashes": [1]}))
    assert (told, unread) == ([Told(1, 0, 4096, (Removed((1,)),))], 1)


def test_what_a_later_release_may_add_is_passed_over():
    told, unread = read_answer(answer({"type": "loved", "by": 1}, hash_algo="v1_block_key"))
    assert (told, unread) == ([Told(0, 0, 4096, ())], 0)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
MEMBERS = ["parent_hash", "blocks", "block_hashes", "block_hash", "cache_level"]


@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_answer_is_a_list_of_events_or_a_value_error(body: bytes):
    with suppress(ValueError):
        told, unread = read_answer(body)
        assert (unread == 0) or told == []


@given(
    st.sampled_from(["created", "stored", "removed", "updated"]),
    st.dictionaries(st.sampled_from(MEMBERS), JSON),
    st.dictionaries(st.sampled_from(["window_size", "attention_dp_rank", "layer_group_id"]), JSON),
)
def test_any_event_is_read_or_counted(kind: str, data: dict[str, Any], more: dict[str, Any]):
    told, unread = read_answer(answer({**data, "type": kind}, **more))
    assert len(told) + unread == 1


def test_numbers_say_what_was_missed_and_who_began_anew():
    numbers = Numbers()
    apply, gap, restarted = Verdict.APPLY, Verdict.GAP, Verdict.RESTARTED
    assert [numbers.judge(n) for n in (5, 6, 8, 9, 0, 1, 1)] == [
        *(apply, apply, gap, apply, restarted, apply, restarted)
    ]
