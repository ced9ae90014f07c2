# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402, FBT001
# (skip before importing what needs them; parameters of a test come by name)
"""Keys rotated inside the window; mostly in fp32, where a wrong index cannot hide in rounding."""

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.kernels import ops as _ops  # noqa: F401 - registers torch.ops.forebay
from forebay.kernels.attention.decode import DecodeConfig, decode_plan, paged_decode
from forebay.kernels.attention.layout import PagedCache, Rope, Rule
from forebay.kernels.attention.prefill import PrefillConfig, paged_prefill
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import (
    DEVICE,
    Case,
    assert_close,
    dequantised,
    error,
    guarded_outputs,
    make_case,
    quantise_cache,
)

DECODE = DecodeConfig(block_m=16, block_n=32, num_warps=4, num_stages=2, resident=2)
PREFILL = PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
POLICIES = ["mission", "occupancy", "balanced", "fixed"]
ANY_STEP = 127


def make_rope(rows: int, dim: int, *, interleaved: bool = False) -> Rope:
    """Tables of just so many rows, between rows of NaN."""
    angles = torch.arange(rows)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    both = torch.full((2, rows + 2, dim // 2), math.nan, device=DEVICE)
    both[:, 1:-1] = torch.stack([angles.cos(), angles.sin()])
    return Rope(both[0, 1:-1], both[1, 1:-1], interleaved)


def make_rule(
    window: int = 40, sinks: int = 4, *, dim: int = 64, interleaved: bool = False
) -> Rule:
    """Tables of what a row sees."""
    rope = make_rope(window + sinks, dim, interleaved=interleaved)
    return Rule(window=window, sink_tokens=sinks, rope=rope)


def fitted(rule: Rule, new: int) -> Rule:
    """Tables as short as a step of `new` tokens a program allows."""
    assert rule.rope is not None
    rows = rule.window + max(rule.sink_tokens, new - 1)
    rope = make_rope(rows, rule.rope.dim, interleaved=rule.rope.interleaved)
    return replace(rule, rope=rope)


def fp32_case(**options: Any) -> Case:
    return make_case(**{"dtype": torch.float32} | options)


def decode(case: Case, rule: Rule, **options: Any) -> tuple[Any, Any]:
    options = {"config": DECODE, "fixed_tokens": 32} | options
    rule = fitted(rule, case.max_query_len)
    with guarded_outputs(case) as (out, lse):
        paged_decode(
            query=case.query, cache=case.cache, max_seq_len=case.max_seq_len,
            cu_query=case.cu_query, max_query_len=case.max_query_len, rule=rule, out=out, lse=lse,
            **options,
        )  # fmt: skip
    return out, lse


def prefill(case: Case, rule: Rule) -> tuple[Any, Any]:
    tokens, heads, _ = case.query.shape
    rule = fitted(rule, min(tokens, PREFILL.block_m * case.cache.kv_heads // heads))
    with guarded_outputs(case) as (out, lse):
        paged_prefill(
            query=case.query, cache=case.cache, cu_query=case.cu_query, rule=rule, config=PREFILL,
            out=out, lse=lse,
        )  # fmt: skip
    return out, lse


def reference(case: Case, rule: Rule) -> tuple[Any, Any]:
    return attention_reference(
        query=case.query, cache=case.cache, cu_query=case.cu_query, rule=rule
    )


def check(case: Case, rule: Rule, **options: Any) -> None:
    out, lse = decode(case, rule, **options)
    want, want_lse = reference(case, rule)
    assert_close(out, want, case.query.dtype, (lse, want_lse))


def check_prefill(case: Case, rule: Rule) -> None:
    out, lse = prefill(case, rule)
    want, want_lse = reference(case, rule)
    assert_close(out, want, case.query.dtype, (lse, want_lse))


def rotated(rows: Any, positions: Any, *, interleaved: bool) -> Any:
    """Rotary embedding at true positions, by complex numbers; rows `[..., heads, dim]`."""
    dim = rows.shape[-1]
    angles = positions.double()[..., None] * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    turn = torch.polar(torch.ones_like(angles), angles)[..., None, :].to(rows.device)
    rows = rows.double()
    if interleaved:
        pairs = torch.view_as_complex(rows.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)
    halves = torch.complex(rows[..., : dim // 2], rows[..., dim // 2 :]) * turn
    return torch.cat([halves.real, halves.imag], -1)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("query_lens", [1, 5])
def test_nothing_evicted_is_plain_rotary_attention(query_lens: int, interleaved: bool) -> None:
    """Up to the tokens that sinks and window hold, against keys rotated where they are."""
    lens = [44, 43, 17, 5]
    case = fp32_case(seq_lens=lens, query_lens=query_lens)
    cache, table = case.cache, case.cache.block_table
    assert table is not None
    key = cache.key.double()
    at = [torch.arange(n - query_lens, n) for n in lens]
    for b, n in enumerate(lens):
        where = torch.arange(n)
        place = table[b, where // 16].long(), where % 16
        key[place] = rotated(cache.key[place], where, interleaved=interleaved)
    want, want_lse = attention_reference(
        query=rotated(case.query, torch.cat(at), interleaved=interleaved),
        cache=replace(cache, key=key), cu_query=case.cu_query,
    )  # fmt: skip
    rule = make_rule(interleaved=interleaved)
    for out, lse in (decode(case, rule), prefill(case, rule), reference(case, rule)):
        assert_close(out, want, torch.float32, (lse, want_lse))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("query_lens", [1, 3])
@pytest.mark.parametrize("lens", [[43, 44, 45], [46, 47, 0], [150, 1009, 64]], ids=str)
def test_each_policy_at_the_edge_and_far_past_it(
    lens: list[int], query_lens: int, policy: str
) -> None:
    case = fp32_case(seq_lens=lens, query_lens=query_lens, dim=32)
    check(case, make_rule(dim=32), policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("query_lens", [[1, 5, 0, 3], [64, 17, 1, 2]], ids=str)
def test_ragged_batches_whose_rows_see_windows_of_their_own(
    query_lens: list[int], policy: str
) -> None:
    case = fp32_case(seq_lens=[90, 48, 40, 210], query_lens=query_lens, heads=4, dim=16)
    check(case, make_rule(dim=16), policy=policy)


@pytest.mark.parametrize(
    ("window", "sinks"), [(40, 0), (9, 40), (1, 1), (1, 0), (33, 64), (64, 4)], ids=str
)
def test_windows_and_sinks_beside_tiles(window: int, sinks: int) -> None:
    """Sinks of more than a tile, none at all, a window of the query alone."""
    rule = make_rule(window, sinks, dim=32)
    case = fp32_case(seq_lens=[200, 66, 31], query_lens=6, dim=32)
    check(case, rule)
    check_prefill(case, rule)


@pytest.mark.parametrize("page", [1, 16, 24, 64])
@pytest.mark.parametrize("csr", [False, True], ids=["table", "csr"])
def test_every_page_size_in_both_index_modes(page: int, csr: bool) -> None:
    case = fp32_case(seq_lens=[45, 140], query_lens=2, page=page, csr=csr, dim=32)
    check(case, make_rule(dim=32))
    check_prefill(case, make_rule(dim=32))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 1), (6, 2), (5, 1), (32, 2)], ids=str)
def test_every_group_of_query_heads(heads: int, kv_heads: int) -> None:
    case = fp32_case(seq_lens=[70, 50], query_lens=3, heads=heads, kv_heads=kv_heads, dim=32)
    check(case, make_rule(dim=32))
    check_prefill(case, make_rule(dim=32))


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(
    ("dim", "rotary"), [(64, 64), (64, 32), (64, 2), (96, 96), (80, 32), (16, 16), (128, 126)]
)
def test_dims_of_which_all_or_some_are_rotated(dim: int, rotary: int, interleaved: bool) -> None:
    case = fp32_case(seq_lens=[70, 33], query_lens=2, heads=4, dim=dim)
    rule = make_rule(dim=rotary, interleaved=interleaved)
    check(case, rule)
    check_prefill(case, rule)


@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_an_8_bit_cache_is_as_exact_as_its_dequantised_self(
    dtype: Any, interleaved: bool, kv: Any
) -> None:
    case = make_case(seq_lens=[70, 130], query_lens=4, dtype=dtype)
    case = replace(case, cache=quantise_cache(case.cache, kv))
    rule = make_rule(dim=32, interleaved=interleaved)
    want, want_lse = reference(replace(case, cache=dequantised(case.cache)), rule)
    wide = replace(DECODE, block_m=32)  # other products of weights and values than 16 rows have
    for out, lse in (
        decode(case, rule), decode(case, rule, config=wide), prefill(case, rule)
    ):  # fmt: skip
        assert error(out, want)[0] < (1e-3 if dtype == torch.float16 else 1e-5)
        assert (lse - want_lse).abs().max() < (2e-3 if dtype == torch.float16 else 1e-5)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_16_bit_keys_are_rounded_once_more_when_rotated(interleaved: bool) -> None:
    case = make_case(seq_lens=[70, 130], query_lens=4)
    rule = make_rule(interleaved=interleaved)
    want, want_lse = reference(case, rule)
    for out, lse in (decode(case, rule), prefill(case, rule)):
        assert error(out, want)[0] < 1e-3
        assert (lse - want_lse).abs().max() < 2e-3


@pytest.mark.parametrize("policy", ["balanced", "fixed"])
def test_a_soft_cap_and_sink_logits_go_with_it(policy: str) -> None:
    logits = torch.linspace(-2, 3, 8, device=DEVICE)
    rule = replace(make_rule(), soft_cap=5.0, sinks=logits)
    case = fp32_case(seq_lens=[150, 33], query_lens=3)
    check(case, rule, policy=policy)
    check_prefill(case, rule)


@pytest.mark.parametrize(
    ("seq_lens", "query_lens"),
    [([100], [100]), ([33, 190], [33, 70]), ([17, 64, 5], [1, 64, 2]), ([70, 20, 90], [8, 0, 9])],
    ids=str,
)
def test_prefill_with_and_without_a_cached_prefix(
    seq_lens: list[int], query_lens: list[int]
) -> None:
    """Chunks that outgrow the window: the first blocks evict nothing, the last see other keys."""
    case = fp32_case(seq_lens=seq_lens, query_lens=query_lens, dim=32)
    check_prefill(case, make_rule(dim=32))


@pytest.mark.parametrize("rope", [False, True], ids=["abs", "rerope"])
def test_a_plan_of_larger_tiles_still_gives_somebody_the_sinks(rope: bool) -> None:
    """The window begins in the second half of a tile of 64, where one of 32 begins as well."""
    case = fp32_case(seq_lens=[140, 150], dim=32)
    rule = fitted(make_rule(dim=32), 1) if rope else Rule(window=40, sink_tokens=4)
    larger = replace(DECODE, block_n=64)
    plan = decode_plan(query=case.query, cache=case.cache, rule=rule, config=larger)
    out = paged_decode(
        query=case.query, cache=case.cache, max_seq_len=150, rule=rule, config=DECODE, plan=plan
    )
    assert_close(out, reference(case, rule)[0], torch.float32)


def test_what_was_evicted_is_not_read() -> None:
    case = fp32_case(seq_lens=[300], page=32, dim=32)
    rule = make_rule(dim=32)
    assert case.cache.block_table is not None
    clean = decode(case, rule)[0], prefill(case, rule)[0]
    hidden = case.cache.block_table[0, 1:8].long()
    case.cache.key[hidden] = math.nan
    case.cache.value[hidden] = math.nan
    assert torch.equal(decode(case, rule)[0], clean[0])
    assert torch.equal(prefill(case, rule)[0], clean[1])


def moved(case: Case, by: int) -> Case:
    """Return the case with all but the first page of its one sequence `by` pages on."""
    table = case.cache.block_table
    assert table is not None
    far = torch.cat([table[:, :1].expand(1, 1 + by), table[:, 1:]], dim=1).contiguous()
    length = case.max_seq_len + by * case.cache.page
    lens = torch.tensor([length], dtype=torch.int32, device=DEVICE)
    cache = replace(case.cache, seq_lens=lens, block_table=far)
    return replace(case, cache=cache, max_seq_len=length)


@settings(max_examples=15, deadline=None)
@given(
    by=st.integers(0, 2_000_000),
    query_len=st.integers(1, 8),
    policy=st.sampled_from(POLICIES[1:3]),
)
def test_position_does_not_matter(by: int, query_len: int, policy: str) -> None:
    """Some millions of tokens on, the result is the same: to the bit, where tiles begin alike."""
    case = fp32_case(seq_lens=[75], query_lens=query_len, heads=2, kv_heads=1, dim=16, page=4)
    rule = make_rule(dim=16)
    far = moved(case, by)
    pairs = zip(
        (*decode(case, rule, policy=policy), *prefill(case, rule)),
        (*decode(far, rule, policy=policy), *prefill(far, rule)),
        strict=True,
    )
    for near_result, far_result in pairs:
        assert (near_result - far_result).abs().max() < 1e-5
        if by % 8 == 0:
            assert torch.equal(near_result, far_result)


@settings(max_examples=25, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 9)), min_size=1, max_size=3),
    window=st.integers(1, 80),
    sinks=st.integers(0, 40),
    page=st.sampled_from([1, 16, 48]),
    policy=st.sampled_from(POLICIES),
    interleaved=st.booleans(),
)
def test_any_batch_window_and_sinks(
    sequences: list[tuple[int, int]], window: int, sinks: int, page: int, policy: str,
    interleaved: bool,
) -> None:  # fmt: skip
    query_lens = [min(new, length) for length, new in sequences]
    if not any(query_lens):
        return
    case = fp32_case(
        seq_lens=[length for length, _ in sequences], query_lens=query_lens, heads=2, kv_heads=1,
        dim=16, page=page,
    )  # fmt: skip
    rule = make_rule(window, sinks, dim=16, interleaved=interleaved)
    check(case, rule, policy=policy)
    check_prefill(case, rule)


def test_the_ops_take_the_tables() -> None:
    case = fp32_case(seq_lens=[133, 20], query_lens=2, dim=32)
    rule = fitted(make_rule(dim=32, interleaved=True), ANY_STEP + 1)
    assert rule.rope is not None
    assert case.cache.block_table is not None
    arguments = {
        "query": case.query, "key_cache": case.cache.key, "value_cache": case.cache.value,
        "block_table": case.cache.block_table, "seq_lens": case.cache.seq_lens,
        "scale": 32**-0.5, "window": 40, "sink_tokens": 4, "rope_cos": rule.rope.cos,
        "rope_sin": rule.rope.sin, "rope_interleaved": True,
    }  # fmt: skip
    want, _ = reference(case, rule)
    out = torch.empty_like(case.query)
    torch.ops.forebay.paged_decode(out, max_seq_len=256, max_query_len=2, **arguments)
    assert_close(out, want, torch.float32)
    out = torch.empty_like(case.query)
    torch.ops.forebay.paged_prefill(out, cu_query=case.cu_query, **arguments)
    assert_close(out, want, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0, "sink_tokens": 0}, "rope needs a window"),
        ({"tree": torch.ones(3, dtype=torch.int64)}, "tree mask with rope"),
        ({"sink_tokens": 5}, "44 rows, and this step needs 45"),
        ({"rope": Rope(torch.ones(44, 32), torch.ones(44, 31))}, "differ in shape"),
        ({"rope": Rope(torch.ones(44, 33), torch.ones(44, 33))}, "rotate 66 dims, .* has 64"),
        ({"rope": Rope(torch.ones(44, 32).half(), torch.ones(44, 32))}, "cos must be fp32"),
        ({"rope": Rope(torch.ones(44, 32), torch.ones(44, 64)[:, ::2])}, "sin must be contig"),
        ({"rope": Rope(torch.ones(44), torch.ones(44))}, r"cos must be \[rows, pairs\]"),
        ({"rope": Rope(*torch.ones(2, 44, 32, device="meta"))}, "on the query's device"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_has_no_meaning_is_refused(change: dict[str, Any], message: str) -> None:
    case = fp32_case(seq_lens=[20], query_lens=3)
    rule = replace(make_rule(), **change)
    with pytest.raises(ValueError, match=message):
        paged_decode(query=case.query, cache=case.cache, max_seq_len=20, max_query_len=3, rule=rule)


def test_the_shortest_tables_of_a_prefill_are_those_of_its_blocks() -> None:
    """At most 127 rows past the window, whatever the chunk."""
    pool = torch.empty(64, 16, 8, 128, dtype=torch.bfloat16, device="meta")
    lens = torch.empty(2, dtype=torch.int32, device="meta")
    cache = PagedCache(pool, pool, lens, block_table=lens[:, None])
    query = torch.empty(5000, 8, 128, dtype=torch.bfloat16, device="meta")
    rope = Rope(*torch.empty(2, 1024 + ANY_STEP - 1, 64, device="meta"))
    with pytest.raises(ValueError, match="1150 rows, and this step needs 1151"):
        paged_prefill(query=query, cache=cache, cu_query=lens, rule=Rule(window=1024, rope=rope))
