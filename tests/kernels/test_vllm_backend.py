# pyright: basic, reportMissingImports=false
# (torch, triton and vLLM are not installed where types are checked)
# ruff: noqa: ANN001, ANN202, ANN204, E402
# (skip before importing what needs them; signatures are vLLM's)
"""vLLM's attention backend: what a CUDA graph holds of a step is right for later steps, too.

A stand-in has of vLLM what the builder uses; the plan and decode run in Triton's interpreter.
"""

import importlib
import sys
import types
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.decode import decode_config, paged_decode
from forebay.kernels.attention.decode_settings import fitted
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import DEVICE, assert_close, make_case

HEADS, KV_HEADS, DIM, PAGE, MOST = 4, 2, 16, 16, 4
OURS = "forebay.kernels.plugins.vllm_backend"


class StockBuilder:
    """vLLM's TritonAttentionMetadataBuilder."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        del layer_names, device
        self.vllm_config, self.block_size = vllm_config, kv_cache_spec.block_size
        self.num_heads_q, self.num_heads_kv, self.headdim = (
            HEADS,
            1,
            8,
        )  # of the model's first layer
        self.supports_draft_decode_metadata_update = True

    def _init_reorder_batch_threshold(self, threshold, *, supports_spec_as_decode):
        guesses = self.vllm_config.guesses if supports_spec_as_decode else 0
        self.reorder_batch_threshold = threshold + guesses

    def build(self, common_prefix_len, common, fast_build=False):  # noqa: FBT002 - vLLM's
        del common_prefix_len, common, fast_build
        return SimpleNamespace()

    def build_for_cudagraph_capture(self, common):
        metadata = self.build(0, common)
        common.seq_lens.fill_(1)
        return metadata


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch):
    """Our module, imported beside a stand-in for vLLM."""
    base: Any = types.ModuleType("vllm.v1.attention.backend")
    base.AttentionCGSupport = SimpleNamespace(UNIFORM_BATCH="uniform")
    base.AttentionType = SimpleNamespace(DECODER="decoder")
    stock: Any = types.ModuleType("vllm.v1.attention.backends.triton_attn")
    stock.TritonAttentionBackend = stock.TritonAttentionImpl = object
    stock.TritonAttentionMetadataBuilder = StockBuilder
    for module in (base, stock):
        parts = module.__name__.split(".")
        for i in range(1, len(parts)):
            name = ".".join(parts[:i])
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.setitem(sys.modules, stock.__name__, stock)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    yield importlib.import_module(OURS)
    del sys.modules[OURS]


def builder_of(backend, guesses: int):
    config = SimpleNamespace(
        guesses=guesses,
        model_config=SimpleNamespace(max_model_len=512, dtype=torch.float16),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    spec = SimpleNamespace(block_size=PAGE, num_kv_heads=KV_HEADS, head_size=DIM)
    return backend.ForebayMetadataBuilder(spec, ["layer"], config, torch.device(DEVICE))


class Buffers:
    """vLLM's persistent tensors, filled for a step of rows of some tokens, as it pads them."""

    def __init__(self) -> None:
        self.starts = torch.zeros(MOST + 1, dtype=torch.int32, device=DEVICE)
        self.lens = torch.zeros(MOST, dtype=torch.int32, device=DEVICE)

    def step(self, rows: list[int], lens: list[int], *, tokens: int, longest: int) -> Any:
        self.lens.copy_(torch.tensor(lens + [0] * (MOST - len(lens))))
        ends = torch.tensor(rows + [0] * (MOST - len(rows))).cumsum(0)
        self.starts[1:].copy_(ends)
        return SimpleNamespace(
            causal=True, num_reqs=MOST, num_actual_tokens=tokens, max_query_len=longest,
            query_start_loc=self.starts, query_start_loc_cpu=self.starts.cpu(), seq_lens=self.lens,
        )  # fmt: skip


def held(step: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Address and shape of each tensor that a graph would hold of a step."""
    plan = (step.plan.items, step.plan.first, step.plan.parts) if step.plan else ()
    room = (step.workspace.out, step.workspace.lse, step.workspace.arrived)
    tensors = [*plan, step.cu_decode, step.cu_prefill, *room]
    return [(t.data_ptr(), tuple(t.shape)) for t in tensors if t is not None]


@pytest.mark.parametrize("alive", [1, 3, 4])
@pytest.mark.parametrize(("guesses", "new"), [(0, 1), (2, 3), (2, 1)])
def test_a_graph_captured_on_lengths_of_one_attends_rightly_when_replayed(
    backend, guesses: int, new: int, alive: int
) -> None:
    builder, buffers = builder_of(backend, guesses), Buffers()
    full = buffers.step([new] * MOST, [1] * MOST, tokens=new * MOST, longest=new)
    captured = builder.build_for_cudagraph_capture(full).forebay
    case = make_case(
        seq_lens=[300, 33, 170, 64][:alive] + [0] * (MOST - alive), query_lens=new, heads=HEADS,
        kv_heads=KV_HEADS, dim=DIM, page=PAGE,
    )  # fmt: skip
    rows = [new] * alive
    lens = case.cache.seq_lens.tolist()[:alive]
    builder.build(0, buffers.step(rows, lens, tokens=new * MOST, longest=new))
    out = torch.full_like(case.query, float("nan"))
    cache = PagedCache(case.cache.key, case.cache.value, buffers.lens, case.cache.block_table)
    paged_decode(
        query=case.query, cache=cache, max_seq_len=captured.max_seq_len, plan=captured.plan,
        cu_query=captured.cu_decode, max_query_len=captured.decode_query_len,
        workspace=captured.workspace, out=out,
    )  # fmt: skip
    want, _ = attention_reference(
        query=case.query, cache=replace(case.cache, seq_lens=buffers.lens), cu_query=case.cu_query
    )
    assert_close(out[: new * alive], want[: new * alive], torch.float16)


@pytest.mark.parametrize("padded", [True, False], ids=["tokens padded", "tokens not padded"])
@pytest.mark.parametrize(("guesses", "new"), [(0, 1), (2, 3), (2, 1), (70, 71), (70, 1)])
def test_a_step_fills_what_a_graph_of_as_many_sequences_holds(
    backend, guesses: int, new: int, *, padded: bool
) -> None:
    builder, buffers = builder_of(backend, guesses), Buffers()
    full = buffers.step([new] * MOST, [1] * MOST, tokens=new * MOST, longest=new)
    captured = builder.build_for_cudagraph_capture(full).forebay
    tokens = new * (MOST if padded else 3)
    later = builder.build(
        0, buffers.step([new] * 3, [300, 80, 170], tokens=tokens, longest=new)
    ).forebay
    same = held(later)
    assert [place for place in held(captured) if place not in same] == []
    assert captured.decode_query_len == later.decode_query_len
    if captured.cu_prefill is not None:
        assert captured.cu_prefill.tolist() == [0, 71, 142, 213, 213]


def test_drafts_are_not_stepped_on_without_a_plan_of_their_own(backend) -> None:
    """vLLM asks before it records draft steps that build no metadata between them."""
    assert not builder_of(backend, 2).supports_draft_decode_metadata_update


def test_the_plan_is_made_for_the_kernel_that_the_layers_run(backend) -> None:
    """Which meta tensors stand for on an H200: narrow decode for an ordinary step, by its tile."""
    builder = builder_of(backend, 0)
    kind: dict[str, Any] = {"dtype": torch.bfloat16, "device": "meta"}
    builder._query = torch.empty(1, 32, 128, **kind)
    builder._cache = torch.empty(1, 16, 8, 128, **kind)
    lens = torch.empty(8, dtype=torch.int32, device="meta")
    pages = torch.empty(64, 8, 16, 256, **kind).transpose(1, 2)
    table = torch.empty(8, 4, dtype=torch.int32, device="meta")
    real = PagedCache(pages[..., :128], pages[..., 128:], lens, block_table=table)
    found = [
        fitted(
            decode_config(query=builder._query, cache=cache), builder._query, cache, rule=Rule(),
            max_query_len=1, policy="balanced",
        )
        for cache in (builder._stand_in(lens), real)
    ]  # fmt: skip
    assert found[0] == found[1]
    assert found[0].hopper == 64


def test_graphs_are_left_to_steps_of_equal_rows(backend) -> None:
    assert builder_of(backend, 2)._cudagraph_support == "uniform"


def test_the_workspace_is_for_the_layers_own_heads(backend) -> None:
    room = builder_of(backend, 0)._workspace
    assert room.out.numel() == room.lse.numel() * DIM
