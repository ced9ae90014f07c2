# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: ANN001, ANN002, E402, N803
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""The rejection kernel keeps what the reference keeps, and its output follows the target's law."""

import json
import math
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
triton = pytest.importorskip("triton", reason="kernels need triton")
import triton.language as tl

from forebay.kernels.sampling.reference import rejection_reference
from forebay.kernels.sampling.rejection import RejectionConfig, rejection_sample
from forebay.kernels.testing import DEVICE, DTYPES

COUNTS = [3, 0, 1, 4]


def chunks_of(tokens):
    return RejectionConfig(chunk=tokens, num_warps=4)


def case(vocab, dtype, *, counts=COUNTS, seed=0):
    rng = torch.Generator(device=DEVICE).manual_seed(seed)
    total = sum(counts)
    logits = torch.randn(total + len(counts), vocab, generator=rng, device=DEVICE).to(dtype) * 2
    draft = torch.randint(vocab, (total,), generator=rng, device=DEVICE, dtype=torch.int32)
    cu = torch.tensor([0, *counts], device=DEVICE).cumsum(0).int()
    seeds = torch.arange(len(counts), device=DEVICE) + 11
    return {
        "logits": logits,
        "draft": draft,
        "cu_draft": cu,
        "most": max(counts),
        "seeds": seeds,
        "places": torch.zeros(len(counts), dtype=torch.int64, device=DEVICE),
    }


def never(*_):
    raise AssertionError("greedy needs no coin")


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize(("vocab", "chunk"), [(16, 4096), (1000, 256), (37, 16)])
def test_greedy_rows_follow_the_argmax_and_stop_where_it_parts(vocab, chunk, dtype):
    made = case(vocab, dtype)
    # Sequence 0: all right; 3: right, right, wrong, right.
    best = made["logits"].float().argmax(-1)
    made["draft"][0:3] = best[0:3].int()
    made["draft"][4:8] = best[6:10].int()
    made["draft"][6] = (made["draft"][6] + 1) % vocab
    zeros = torch.zeros(4, device=DEVICE)
    config = chunks_of(chunk)
    out, accepted = rejection_sample(**made, temperature=zeros, config=config)
    told = {k: v.cpu() for k, v in made.items() if k in ("logits", "draft", "cu_draft")}
    want = rejection_reference(**told, temperature=zeros.cpu(), keep_coin=never, race=never)
    assert torch.equal(out.cpu(), want[0])
    assert torch.equal(accepted.cpu(), want[1])


def test_ties_go_to_the_lower_id_also_over_chunks():
    made = case(64, torch.float32, counts=[1])
    made["logits"].zero_()
    made["logits"][0, [9, 40]] = 5.0
    made["logits"][1, [63, 33]] = 5.0
    made["draft"][0] = 9
    out, _ = rejection_sample(
        **made, temperature=torch.zeros(1, device=DEVICE), config=chunks_of(16)
    )
    assert out.tolist() == [[9, 33]]


def laws(kind, vocab):
    rng = torch.Generator().manual_seed(3)
    p = torch.rand(vocab, generator=rng, dtype=torch.float64) ** 3
    q = torch.rand(vocab, generator=rng, dtype=torch.float64) ** 3
    if kind == "equal":
        q = p.clone()
    elif kind == "disjoint":
        p[: vocab // 2], q[vocab // 2 :] = 0, 0
    elif kind == "adversarial":
        q = (p.max() - p) ** 4 + 1e-9
    return p / p.sum(), q / q.sum()


def assert_law(tokens, p):
    heard = torch.bincount(tokens.long().cpu(), minlength=len(p)).double()
    kept = p > 1e-12
    assert float(heard[~kept].sum()) == 0
    wanted = p[kept] * heard.sum()
    freedom = int(kept.sum()) - 1
    chi = float(((heard[kept] - wanted) ** 2 / wanted).sum())
    assert chi < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    apart = 0.5 * float((heard / heard.sum() - p).abs().sum())
    assert apart < 3 * math.sqrt(len(p) / float(heard.sum()))


@triton.jit
def coins_kernel(out_ptr, told_ptr, SIZE: tl.constexpr):
    """The kernel's own numbers: a place's coin, then its race's, one a token of a lone chunk."""
    seed = tl.load(told_ptr)
    place = tl.load(told_ptr + 1)
    tl.store(out_ptr, tl.rand(seed, place * 2))
    offs = tl.arange(0, SIZE // 4)
    numbers = tl.rand4x(seed ^ ((place * 2 + 1) * 0x1E3779B1), offs)
    for part in tl.static_range(4):
        tl.store(out_ptr + 1 + part + offs * 4, numbers[part])


def numbers(seed, place, size):
    out = torch.empty(size + 1, device=DEVICE)
    coins_kernel[(1,)](out, torch.tensor([seed, place], device=DEVICE), SIZE=size)
    return out.cpu()


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "one-hot"])
def test_with_the_kernels_own_numbers_the_reference_comes_to_the_same(drawn):
    """So the kernel has the law of the reference, whose law is tested below."""
    made = case(16, torch.float32, counts=[2, 3, 1, 0, 2, 3], seed=4)
    rng = torch.Generator().manual_seed(2)
    probs = torch.randn(11, 16, generator=rng).softmax(-1) if drawn else None
    warm = torch.tensor([0.7, 1.0, 1.5, 0.9, 0.0, 0.4], device=DEVICE)
    out, accepted = rejection_sample(
        **made,
        temperature=warm,
        config=chunks_of(16),
        draft_probs=None if probs is None else probs.to(DEVICE),
    )
    seeds = made["seeds"].tolist()
    told = {k: v.cpu() for k, v in made.items() if k in ("logits", "draft", "cu_draft")}
    want = rejection_reference(
        **told,
        temperature=warm.cpu(),
        draft_probs=probs,
        keep_coin=lambda b, place: float(numbers(seeds[b], place, 16)[0]),
        race=lambda b, place, size: -numbers(seeds[b], place, size)[1:].log(),
    )
    assert out.tolist() == want[0].tolist()
    assert accepted.tolist() == want[1].tolist()


TRIALS = 4_000


@pytest.mark.parametrize("kind", ["random", "equal", "disjoint", "adversarial"])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "one-hot"])
def test_the_references_first_token_follows_the_targets_law(kind, drawn):
    p, q = laws(kind, 8)
    rng = torch.Generator().manual_seed(1)
    draft = torch.full((TRIALS,), int(q.argmax()), dtype=torch.int32)
    if drawn:
        draft = torch.multinomial(q, TRIALS, replacement=True, generator=rng).int()
    waits = torch.empty(TRIALS, 8).exponential_(generator=rng)
    keeps = torch.rand(TRIALS, generator=rng)
    out, accepted = rejection_reference(
        logits=(p.log() * 0.5).repeat(2 * TRIALS, 1),
        draft=draft,
        cu_draft=torch.arange(TRIALS + 1),
        temperature=torch.full((TRIALS,), 0.5),
        draft_probs=q.repeat(TRIALS, 1) if drawn else None,
        keep_coin=lambda b, _place: float(keeps[b]),
        race=lambda b, _place, _size: waits[b],
    )
    assert_law(out[:, 0], p)
    if kind == "equal" and drawn:
        assert int(accepted.sum()) == TRIALS
    if kind == "disjoint":
        assert int(accepted.sum()) == 0


def test_a_sequence_does_not_depend_on_its_batch():
    made = case(100, torch.float32)
    warm = torch.full((4,), 0.8, device=DEVICE)
    together, _ = rejection_sample(**made, temperature=warm, config=chunks_of(32))
    for b, count in enumerate(COUNTS):
        first = int(made["cu_draft"][b])
        alone, _ = rejection_sample(
            logits=made["logits"][first + b : first + b + count + 1],
            draft=made["draft"][first : first + count],
            cu_draft=torch.tensor([0, count], dtype=torch.int32, device=DEVICE),
            most=count,
            temperature=warm[:1],
            seeds=made["seeds"][b : b + 1],
            places=made["places"][b : b + 1],
            config=chunks_of(32),
        )
        assert alone[0].tolist() == together[b, : count + 1].tolist()


def test_filtered_tokens_are_never_drawn():
    made = case(50, torch.float32, counts=[2] * 12)
    made["logits"][:, 10:] = -math.inf
    out, _ = rejection_sample(
        **made, temperature=torch.ones(12, device=DEVICE), config=chunks_of(16)
    )
    assert int(out.max()) < 10


@pytest.mark.parametrize("kind", ["random", "adversarial"])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "one-hot"])
def test_the_law_holds_over_several_chunks(kind, drawn):
    """A lone chunk's numbers are the reference's; which chunk is drawn is tested by the law."""
    trials = 4000 if torch.cuda.is_available() else 60
    p, q = laws(kind, 40)
    rng = torch.Generator().manual_seed(1)
    draft = torch.full((trials,), int(q.argmax()), dtype=torch.int32)
    if drawn:
        draft = torch.multinomial(q, trials, replacement=True, generator=rng).int()
    out, _ = rejection_sample(
        logits=(p.log() * 0.5).float().repeat(2 * trials, 1).to(DEVICE),
        draft=draft.to(DEVICE),
        cu_draft=torch.arange(trials + 1, device=DEVICE).int(),
        most=1,
        temperature=torch.full((trials,), 0.5, device=DEVICE),
        seeds=torch.arange(trials, device=DEVICE),
        places=torch.zeros(trials, dtype=torch.int64, device=DEVICE),
        draft_probs=q.float().repeat(trials, 1).to(DEVICE) if drawn else None,
        config=chunks_of(16),
    )
    assert_law(out[:, 0], p)


def test_a_refused_token_that_held_all_but_rounding_is_not_drawn():
    """Where what is left is 1e-9 of its chunk, a sum less the refused token would be rounding."""
    trials = 24
    logits = torch.full((2 * trials, 48), -math.inf)
    logits[:, 5], logits[:, 7], logits[:, 40] = 0.0, -20.0, -60.0
    out, accepted = rejection_sample(
        logits=logits.to(DEVICE),
        draft=torch.full((trials,), 40, dtype=torch.int32, device=DEVICE),
        cu_draft=torch.arange(trials + 1, device=DEVICE).int(),
        most=1,
        temperature=torch.ones(trials, device=DEVICE),
        seeds=torch.arange(trials, device=DEVICE),
        places=torch.zeros(trials, dtype=torch.int64, device=DEVICE),
        config=chunks_of(16),
    )
    assert accepted.tolist() == [0] * trials
    assert set(out[:, 0].tolist()) <= {5, 7}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_a_guess_a_token_is_drawn_even_from_a_vocabulary_of_three(temperature):
    made = case(3, torch.float32, counts=[0, 0])
    made["logits"][:, 1] = 60.0
    warm = torch.full((2,), temperature, device=DEVICE)
    out, accepted = rejection_sample(**made, temperature=warm)
    assert out.tolist() == [[1], [1]]
    assert accepted.tolist() == [0, 0]


def test_shapes_that_do_not_fit_are_refused():
    made = case(16, torch.float32)
    made["logits"] = made["logits"][1:]
    with pytest.raises(ValueError, match="one row a guess"):
        rejection_sample(**made, temperature=torch.zeros(4, device=DEVICE))


PROGRAM = """
import json, torch
from forebay.kernels.aot import compile_only
from forebay.kernels.sampling.rejection import rejection_sample


def empty(*shape, dtype=torch.int64):
    return torch.empty(shape, dtype=dtype, device="meta")


with compile_only() as found:
    for probs in (None, empty(128, 128256, dtype=torch.float32)):
        rejection_sample(
            logits=empty(160, 128256, dtype=torch.bfloat16), draft=empty(128, dtype=torch.int32),
            cu_draft=empty(33, dtype=torch.int32), most=4, draft_probs=probs,
            temperature=empty(32, dtype=torch.float32), seeds=empty(32), places=empty(32),
        )
print(json.dumps([[k.name, k.stack_bytes] for k in found]))
"""


def test_it_compiles_for_hopper_without_spills():
    """In a process of its own: what the interpreter has defined cannot be compiled."""
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-2000:]
    found = json.loads(told.stdout)
    assert {name for name, _ in found} == {
        f"rejection_{stage}_kernel" for stage in ("stats", "walk", "residual")
    }
    assert {stack for _, stack in found} == {0}
