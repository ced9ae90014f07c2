# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""The compile gate: every shipped configuration, compiled for Hopper, needs no GPU.

Runs in a process of its own, because a kernel defined under the interpreter cannot be compiled.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.timeout(600),  # half a minute of compilation, on a busy machine more
    pytest.mark.skipif(
        not (importlib.util.find_spec("torch") and importlib.util.find_spec("triton")),
        reason="needs torch and triton",
    ),
]

PROGRAM = """
import json
import os
from dataclasses import replace
import torch
from forebay.kernels.aot import compile_only
from forebay.kernels.attention.decode import decode_config, decode_plan, paged_decode
from forebay.kernels.attention.kv_write import write_cache
from forebay.kernels.attention.layout import PagedCache, Rope, Rule
from forebay.kernels.attention.merge import merge_states
from forebay.kernels.attention.mla import mla_config, mla_decode, mla_plan
from forebay.kernels.attention.prefill import paged_prefill

bf16, i32, f32 = torch.bfloat16, torch.int32, torch.float32


def empty(*shape, dtype=i32):
    return torch.empty(shape, dtype=dtype, device="meta")


def paged(kv, page):
    both = empty(4096, 8, page, 256, dtype=kv).transpose(1, 2)
    scales = [None, None]
    if kv.itemsize == 1:
        scales = [empty(4096, 8, page, dtype=f32).transpose(1, 2)] * 2
    return PagedCache(
        both[..., :128], both[..., 128:], empty(8), empty(8, 512),
        key_scale=scales[0], value_scale=scales[1],
    )


def query(rows):
    return empty(rows, 32, 128, dtype=bf16)


found = {}
with compile_only() as compiled:
    def note(name):
        found[name] = [
            dict(kernel=k.name, registers=k.registers, stack=k.stack_bytes, shared=k.shared_bytes,
                 spills=k.count("LDL", "STL"), copies=k.count("LDGSTS"), bulk=k.count("UTMALDG"),
                 wgmma=k.count("HGMMA"),
                 mma=k.count("HMMA"), waits=k.count("WARPGROUP"),
                 byte_loads=k.count("LDS.U8"), barriers=k.count("BAR"), fences=k.count("FENCE"),
                 size=sum(k.opcodes.values()))
            for k in compiled
        ]
        compiled.clear()

    for kv, page in ((bf16, 16), (bf16, 64), (torch.int8, 16), (torch.float8_e4m3fn, 16)):
        cache = paged(kv, page)
        label = f"{str(kv)[6:]} page {page}"
        paged_decode(query=query(8), cache=cache, max_seq_len=4096)
        note(f"decode {label}")
        paged_decode(query=query(8), cache=cache, max_seq_len=4096, policy="balanced")
        note(f"planned {label}")
    cache = paged(bf16, 16)
    window = Rule(window=1024, sink_tokens=4)
    paged_decode(query=query(8), cache=cache, max_seq_len=4096, rule=window)
    note("decode window")
    for kind, kv, rotary, pairs in (
        ("halves", bf16, 128, False), ("pairs", bf16, 128, True), ("partial", bf16, 64, False),
        ("int8", torch.int8, 128, False), ("int8 pairs", torch.int8, 128, True),
        ("e4m3", torch.float8_e4m3fn, 128, False),
    ):
        rope = Rope(*empty(2, 2048, rotary // 2, dtype=f32), pairs)
        turned = Rule(window=1024, sink_tokens=4, rope=rope)
        small = paged(kv, 16)
        for policy in ("occupancy", "balanced"):
            paged_decode(query=query(8), cache=small, max_seq_len=4096, rule=turned, policy=policy)
            note(f"decode rope {kind} {policy}")
        paged_decode(
            query=query(512), cache=small, max_seq_len=4096, max_query_len=64, rule=turned
        )
        note(f"verify 64 rope {kind}")
        paged_prefill(query=query(4096), cache=small, cu_query=empty(9), rule=turned)
        note(f"prefill rope {kind}")
    for rows in (4, 8, 16, 64):
        tree = Rule(tree=empty(8 * rows, dtype=torch.int64))
        for policy in ("occupancy", "balanced"):
            paged_decode(
                query=query(8 * rows), cache=cache, max_seq_len=4096, max_query_len=rows,
                rule=tree, policy=policy,
            )
            note(f"tree {rows} {policy}")
    alone = replace(cache, seq_lens=empty(1), block_table=empty(1, 512))
    paged_decode(
        query=query(64), cache=alone, max_seq_len=4096, max_query_len=64,
        rule=Rule(tree=empty(64, dtype=torch.int64)),
    )
    note("tree alone")
    wide = dict(query=query(8 * 64), cache=cache, max_query_len=64)
    shipped = decode_config(**wide)
    plain = replace(shipped, hopper=0)
    for config in (shipped, replace(plain, block_n=shipped.hopper), plain):
        decode_plan(**wide, config=config)
    plans = [k.key for k in compiled]
    compiled.clear()
    crowd = replace(cache, seq_lens=empty(128), block_table=empty(128, 512))
    for policy in ("occupancy", "balanced"):
        paged_decode(query=query(128), cache=crowd, max_seq_len=4096, policy=policy)
        note(f"decode crowded {policy}")
    small = paged(torch.int8, 16)
    paged_decode(query=query(8 * 8), cache=small, max_seq_len=4096, max_query_len=8)
    note("verify int8")
    small = replace(small, seq_lens=empty(128), block_table=empty(128, 512))
    paged_decode(query=query(128), cache=small, max_seq_len=4096, policy="balanced")
    note("crowd int8")
    for page in (16, 64):
        paged_prefill(query=query(4096), cache=paged(bf16, page), cu_query=empty(9))
        note(f"prefill page {page}")
    paged_prefill(
        query=query(4096), cache=paged(bf16, 16), cu_query=empty(9), rule=Rule(soft_cap=30.0)
    )
    note("prefill soft cap")
    for heads, new, page in ((16, 1, 64), (16, 1, 16), (16, 2, 64), (128, 1, 64)):
        options = dict(
            query=empty(32 * new, heads, 576, dtype=bf16), seq_lens=empty(32),
            latent=empty(64, page, 576, dtype=bf16), max_query_len=new,
        )
        shipped = mla_config(**{k: v for k, v in options.items() if k != "seq_lens"})
        also = [replace(shipped, hopper=False)] if heads == 16 and page == 64 else []
        for config in (shipped, *also):
            kind = "mla" if config.hopper else "Triton's mla"
            for plan in (None, mla_plan(**options, config=config)):
                mla_decode(
                    **options, block_table=empty(32, 512), max_seq_len=4096, scale=0.07,
                    plan=plan, config=config,
                )
                note(f"{kind} {heads * new} page {page}{' planned' if plan else ''}")
    rows = empty(64, 2, 8, 128, dtype=bf16)
    write_cache(
        key=rows[:, 0], value=rows[:, 1], key_cache=cache.key, value_cache=cache.value,
        slots=empty(64, dtype=torch.int64),
    )
    note("write")
    for dtype in (torch.int8, torch.float8_e4m3fn):
        small = paged(dtype, 16)
        write_cache(
            key=rows[:, 0], value=rows[:, 1], key_cache=small.key, value_cache=small.value,
            slots=empty(64, dtype=torch.int64), key_scale=small.key_scale,
            value_scale=small.value_scale,
        )
        note(f"write {dtype}")
    states = empty(2, 64, 32, 128, dtype=bf16), empty(2, 64, 32, dtype=f32)
    merge_states(out_a=states[0][0], lse_a=states[1][0], out_b=states[0][1], lse_b=states[1][1])
    note("merge")

    def a_day():
        # What an engine sees: batches, table widths, chunk sizes, all by the same kernels.
        compiled.clear()
        for batch in (1, 2, 7, 16, 33):
            for columns in (1, 17, 512):
                cache = paged(bf16, 16)
                cache = replace(cache, seq_lens=empty(batch), block_table=empty(batch, columns))
                for policy in ("occupancy", "balanced"):
                    paged_decode(
                        query=query(batch), cache=cache, max_seq_len=16 * columns, policy=policy
                    )
                paged_prefill(query=query(batch * 37), cache=cache, cu_query=empty(batch + 1))
        variants = {}
        for k in compiled:
            variants.setdefault(k.name, set()).add(k.key)
        return {name: len(keys) for name, keys in variants.items()}

    shipped = a_day()
    os.environ["FOREBAY_NARROW_DECODE"] = "0"
    without = a_day()
    compiled.clear()
    for page in (16, 64):
        for rows in (1, 4, 8):
            for policy in ("occupancy", "balanced"):
                paged_decode(
                    query=query(8 * rows), cache=paged(bf16, page), max_seq_len=4096,
                    max_query_len=rows, policy=policy,
                )
                note(f"decode without {rows} page {page} {policy}")
    for kv in (torch.int8, torch.float8_e4m3fn):
        paged_decode(query=query(8), cache=paged(kv, 16), max_seq_len=4096)
        note(f"decode without {str(kv)[6:]}")
    found = {"kernels": found, "shipped": shipped, "without": without, "plans": plans}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def compiled(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return report["kernels"]


def kernels(compiled: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(name, k) for name, made in compiled.items() for k in made]


def reads_cache(kernel: dict[str, Any]) -> bool:
    return any(part in kernel["kernel"] for part in ("split", "narrow", "prefill", "hopper"))


def test_nothing_spills(compiled: Any) -> None:
    bad = [(n, k["kernel"], k["stack"]) for n, k in kernels(compiled) if k["stack"] or k["spills"]]
    # Stored and loaded once a work item, outside the loop over the tiles that all rows see whole.
    assert bad == [
        ("verify 64 rope int8 pairs", "decode_split_kernel", 16),
        ("tree 8 occupancy", "decode_narrow_kernel", 48),
        ("tree 8 balanced", "decode_narrow_kernel", 32),
        ("tree 64 occupancy", "decode_hopper_kernel", 104),
        ("tree 64 balanced", "decode_hopper_kernel", 112),
        ("verify int8", "decode_narrow8_kernel", 8),
        ("Triton's mla 16 page 64 planned", "mla_split_kernel", 24),
        ("Triton's mla 32 page 64 planned", "mla_split_kernel", 48),
        ("decode without int8", "decode_split_kernel", 8),
    ]


def test_everything_fits_in_an_sm(compiled: Any) -> None:
    assert [n for n, k in kernels(compiled) if k["shared"] > 227 * 1024] == []


def test_the_cache_arrives_by_asynchronous_copies(compiled: Any) -> None:
    readers = [(n, k) for n, k in kernels(compiled) if reads_cache(k)]
    assert len(readers) >= 15
    assert [n for n, k in readers if k["copies"] < 16 and k["bulk"] < 4] == []


def test_narrow_decode_takes_whole_pages_alone(compiled: Any) -> None:
    narrow = [(n, k) for n, k in kernels(compiled) if k["kernel"] == "decode_narrow_kernel"]
    assert {n for n, _ in narrow} == {
        *(f"{cut} bfloat16 page {page}" for cut in ("decode", "planned") for page in (16, 64)),
        *(f"tree {rows} {cut}" for rows in (4, 8) for cut in ("occupancy", "balanced")),
        "decode crowded occupancy",
    }
    for name, kernel in narrow:
        assert kernel["copies"] == 0, name
        # A copy of 64 columns a page or a tile, of keys and of values.
        assert kernel["bulk"] == (4 if name.endswith("64") else 16), name
        assert kernel["wgmma"] == 16, name
        # Before and after barriers are made; queries; weights, and values that were zeroed.
        assert kernel["fences"] == 4, name


def test_narrow_decode_of_8_bits_converts_in_registers(compiled: Any) -> None:
    narrow = {n: k for n, k in kernels(compiled) if k["kernel"] == "decode_narrow8_kernel"}
    types = ("int8", "float8_e4m3fn")
    ordinary = {f"{cut} {kv} page 16" for cut in ("decode", "planned") for kv in types}
    assert set(narrow) == ordinary | {"verify int8", "crowd int8"}
    for name, kernel in narrow.items():
        # A copy a page, of keys and of values; two of scales, of four bytes a thread, for each.
        assert (kernel["bulk"], kernel["copies"]) == (8, 4), name
        # No operand of 16 bits is stored: before and after barriers are made; queries; weights.
        assert (kernel["wgmma"], kernel["fences"]) == (16, 4), name
        # Four programs fit on an SM: two of this launch, two of the next. Of 32 rows, and of plans
        # of many sequences, two.
        fit = 4 if name in ordinary else 2
        assert fit * 256 * kernel["registers"] <= 1 << 16, name
        assert fit * (kernel["shared"] + 1024) <= 228 * 1024, name


def test_mla_of_few_heads_takes_pages_by_the_copy_engine(compiled: Any) -> None:
    """64 of the 576 columns at a time; the tile in which a sequence ends is gathered."""
    narrow = [(n, k) for n, k in kernels(compiled) if k["kernel"] == "mla_narrow_kernel"]
    assert {n.removesuffix(" planned"): k["bulk"] for n, k in narrow} == {
        "mla 16 page 64": 9,
        "mla 16 page 16": 9 * 4,
        "mla 32 page 64": 9,
    }
    assert {k["copies"] for _, k in narrow} == {9 * 16}
    # One of them when barriers are made, before the copy engine is told of them.
    assert {k["fences"] for _, k in narrow} == {6}


def test_wide_rows_use_wgmma_and_narrow_ones_mma(compiled: Any) -> None:
    """But where whole pages come by the copy engine: narrow products are turned round there."""
    wide = ("prefill", "mla 128", "tree 16", "tree 64", "tree alone", "verify 64")
    for name, kernel in kernels(compiled):
        if not reads_cache(kernel):
            continue
        turned = "narrow" in kernel["kernel"]
        used = "wgmma" if turned or name.startswith(wide) else "mma"
        assert kernel[used] > 0, name


def test_wgmma_of_one_product_are_not_waited_for_one_by_one(compiled: Any) -> None:
    """The compiler's answer to a wait that it cannot place is one after each."""
    wide = [(n, k) for n, k in kernels(compiled) if k["wgmma"]]
    assert len(wide) >= 5
    # Two a product, of which a head that is rotated in part takes four a tile.
    assert [n for n, k in wide if k["waits"] > 2 * k["wgmma"] // 3] == []


def test_the_gathered_tile_is_fenced_before_the_tensor_cores_read_it(compiled: Any) -> None:
    """What the copy engine brings needs none; what threads copy does, once it is there."""
    found = {
        n: k["fences"]
        for n, k in kernels(compiled)
        if k["kernel"] in {"prefill_hopper_kernel", "decode_hopper_kernel"}
    }
    set_up, one_group, two_groups = 4, ("tree 16", "tree alone"), ("prefill", "tree 64")
    assert [n for n in found if not n.startswith((*one_group, *two_groups))] == []
    # In each group: queries; keys; values before any step; values where there is no step.
    assert {f for n, f in found.items() if n.startswith(one_group)} == {set_up + 4}
    assert {f for n, f in found.items() if n.startswith(two_groups)} == {set_up + 2 * 4}


def test_8_bit_values_are_not_read_byte_by_byte(compiled: Any) -> None:
    splits = [(n, k) for n, k in kernels(compiled) if k["kernel"] == "decode_split_kernel"]
    assert len(splits) >= 5
    assert [n for n, k in splits if n.startswith("decode") and k["byte_loads"]] == []


def test_an_8_bit_write_stays_within_a_warp(compiled: Any) -> None:
    """A row's largest is found by shuffles, and nothing goes through shared memory."""
    writes = {n: k["barriers"] for n, k in kernels(compiled) if n.startswith("write torch")}
    assert list(writes.values()) == [0, 0]


def test_a_plan_is_cut_by_the_tile_of_the_kernel_that_will_walk_it(report: Any) -> None:
    shipped, by_its_tile, by_tritons = report["plans"]
    assert shipped == by_its_tile != by_tritons


def test_decode_leaves_room_for_two_programs_on_an_sm(compiled: Any) -> None:
    """128 threads of at most 255 registers each do; 227 KB of shared memory must, too."""
    crowded = [
        n
        for n, k in kernels(compiled)
        if n.startswith(("decode", "planned")) and 2 * k["shared"] > 227 * 1024
    ]
    assert crowded == []


@pytest.mark.parametrize(
    ("how", "kernel"), [("shipped", "decode_narrow_kernel"), ("without", "decode_split_kernel")]
)
def test_a_days_shapes_need_few_compilations(report: Any, how: str, kernel: str) -> None:
    variants = report[how]
    assert variants == {
        kernel: 5,  # one split; several or planned, merged on the way or afterwards
        "decode_merge_kernel": variants["decode_merge_kernel"],
        "plan_kernel": variants["plan_kernel"],
        "prefill_hopper_kernel": 1,
    }
    assert variants["decode_merge_kernel"] <= 4
    assert variants["plan_kernel"] <= 3


def test_narrow_decode_can_be_switched_off(compiled: Any) -> None:
    ran = {k["kernel"] for n, k in kernels(compiled) if n.startswith("decode without")}
    assert ran == {
        "decode_split_kernel", "decode_merge_kernel", "decode_merge_rows_kernel", "plan_kernel"
    }  # fmt: skip
