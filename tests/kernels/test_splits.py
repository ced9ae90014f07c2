# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.kernels.attention.splits import (
    make_plan,
    mission_splits,
    occupancy_splits,
    part_count,
    split_of,
    static_splits,
)
from forebay.kernels.testing import DEVICE

LENGTHS = [1, 15, 16, 511, 512, 513, 4095, 4096, 100001]


def test_the_missions_formula_says_64_on_any_large_gpu() -> None:
    assert [mission_splits(n, 132) for n in LENGTHS] == [1, 1, 1, 1, 64, 64, 64, 64, 64]
    assert [mission_splits(n, 8) for n in LENGTHS] == [1, 1, 1, 1, 8, 8, 16, 16, 64]


def test_occupancy_splits_only_what_leaves_the_gpu_idle() -> None:
    assert occupancy_splits(programs=1024, slots=396, max_len=4096) == 1
    assert occupancy_splits(programs=64, slots=396, max_len=4096) == 6
    assert occupancy_splits(programs=8, slots=396, max_len=32768) > 40
    assert occupancy_splits(programs=8, slots=396, max_len=300) <= 2


@given(
    st.integers(0, 200_000),
    st.sampled_from(["mission", "occupancy", "fixed"]),
    st.integers(1, 512),
    st.sampled_from([32, 64, 128]),
)
def test_splits_cover_a_sequence_without_gap_or_empty_split(
    length: int, policy: Any, programs: int, block_n: int
) -> None:
    static = static_splits(
        policy, programs=programs, slots=396, sms=132, max_len=200_000, fixed_tokens=512
    )
    count, chunk = split_of(length, static, block_n)
    assert 1 <= count <= static.max_splits
    assert chunk % block_n == 0
    assert (count - 1) * chunk < max(length, 1) <= count * chunk


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=20), st.integers(1, 3))
def test_a_plan_gives_each_token_to_one_item(lens: list[int], waves: int) -> None:
    plan = make_plan(
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=DEVICE),
        programs_per_item=2,
        slots=8 * waves,
        block_n=32,
        min_tokens=64,
    )
    first = plan.first.tolist()
    items = plan.items.tolist()
    parts = plan.parts.tolist()
    walked = [list(range(part[4], part[5])) if part[0] >= 0 else [] for part in parts]
    assert [i for part in walked for i in part] == list(range(first[-1]))
    assert all(part[:4] == items[part[4]] for part in parts if part[0] >= 0)
    for b, length in enumerate(lens):
        mine = items[first[b] : first[b + 1]]
        assert all(item[0] == b and item[3] == len(mine) for item in mine)
        assert [mine[0][1], mine[-1][2]] == [0, length]
        assert all(a[2] == c[1] for a, c in pairwise(mine))


def walked_tokens(plan: Any) -> list[int]:
    """Tokens of each part that has any."""
    items, parts = plan.items.tolist(), plan.parts.tolist()
    return [
        sum(item[2] - item[1] for item in items[part[4] : part[5]])
        for part in parts
        if part[0] >= 0
    ]


def test_a_plan_evens_out_a_ragged_batch() -> None:
    lens = torch.tensor([8000, 100, 100, 100], dtype=torch.int32, device=DEVICE)
    plan = make_plan(seq_lens=lens, programs_per_item=1, slots=16, block_n=64)
    tokens = walked_tokens(plan)
    assert len(tokens) == 15
    assert max(tokens) <= 576
    assert sum(tokens) == 8300


def test_a_part_may_end_one_sequence_and_begin_the_next() -> None:
    lens = torch.full((12,), 4096, dtype=torch.int32, device=DEVICE)
    plan = make_plan(seq_lens=lens, programs_per_item=8, slots=264, block_n=64)
    tokens = walked_tokens(plan)
    assert tokens == [1536] * 32
    assert plan.first.tolist()[-1] == 40


def test_a_plan_with_many_programs_an_item_takes_the_waves_that_fill_the_gpu() -> None:
    assert part_count(programs_per_item=8, slots=264) == (33, 1)
    assert part_count(programs_per_item=48, slots=264) == (11, 2)
    assert part_count(programs_per_item=5000, slots=264) == (1, 19)


def test_a_plan_leaves_whole_what_fills_the_gpu_already() -> None:
    lens = torch.full((32,), 4096, dtype=torch.int32, device=DEVICE)
    plan = make_plan(seq_lens=lens, programs_per_item=8, slots=264, block_n=64)
    assert walked_tokens(plan) == [4096] * 32
    assert plan.first.tolist() == list(range(33))


def test_one_program_on_three_in_five_sms_may_be_enough() -> None:
    """As was the quickest on an H200 where each copies as much as it can."""
    for programs, splits in ((8, 15), (16, 7), (32, 4), (64, 2), (96, 1), (128, 1), (256, 1)):
        assert splits == occupancy_splits(
            programs=programs, slots=132, max_len=4096, min_tokens=64, enough=0.6
        )


def test_a_plan_for_one_program_an_sm_fills_most_of_them_in_one_wave() -> None:
    assert part_count(programs_per_item=8, slots=132) == (16, 1)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="not static"):
        static_splits("balanced", programs=1, slots=1, sms=1, max_len=1)
