# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels import ops as _ops  # noqa: F401 - registers torch.ops.forebay
from forebay.kernels.attention.reference import attention_reference, merge_reference
from forebay.kernels.testing import DEVICE, assert_close, error, make_case


def arguments(case: Any) -> dict[str, Any]:
    return {
        "query": case.query,
        "key_cache": case.cache.key,
        "value_cache": case.cache.value,
        "block_table": case.cache.block_table,
        "seq_lens": case.cache.seq_lens,
        "scale": case.query.shape[2] ** -0.5,
    }


def test_decode_and_prefill_are_torch_ops() -> None:
    case = make_case(seq_lens=[33, 20], query_lens=2, dim=32)
    want, _ = attention_reference(query=case.query, cache=case.cache, cu_query=case.cu_query)
    out = torch.empty_like(case.query)
    torch.ops.forebay.paged_decode(out, max_seq_len=64, max_query_len=2, **arguments(case))
    assert_close(out, want, case.query.dtype)
    out = torch.empty_like(case.query)
    torch.ops.forebay.paged_prefill(out, cu_query=case.cu_query, **arguments(case))
    assert_close(out, want, case.query.dtype)


def test_write_then_merge_are_torch_ops() -> None:
    rows = torch.randn(3, 2, 2, 32, device=DEVICE)
    cache = torch.zeros(2, 4, 16, 2, 32, device=DEVICE)
    slots = torch.tensor([1, 17, 40], device=DEVICE)
    torch.ops.forebay.write_cache(rows[:, 0], rows[:, 1], cache[0], cache[1], slots)
    assert torch.equal(cache[0].flatten(0, 1)[slots], rows[:, 0])
    outs, lses = torch.randn(2, 3, 2, 32, device=DEVICE), torch.randn(2, 3, 2, device=DEVICE)
    out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
    torch.ops.forebay.merge_states(out, lse, outs[0], lses[0], outs[1], lses[1])
    assert error(out, merge_reference(outs=outs, lses=lses)[0])[0] < 1e-5


def test_rejection_is_a_torch_op_whose_shapes_are_known_without_running_it() -> None:
    def arguments(device: str) -> tuple[Any, ...]:
        logits = torch.zeros(5, 16, device=device)
        logits[:, 3] = 9.0
        draft = torch.tensor([3, 3, 4], device=device).int()
        ends = torch.tensor([0, 2, 3], device=device).int()
        greedy, numbers = torch.zeros(2, device=device), torch.zeros(2, device=device).long()
        return logits, draft, ends, 2, greedy, numbers, numbers

    out, accepted = torch.ops.forebay.rejection_sample(*arguments(DEVICE))
    assert out.tolist() == [[3, 3, 3], [3, -1, -1]]
    assert accepted.tolist() == [2, 0]
    shapes = [tuple(each.shape) for each in torch.ops.forebay.rejection_sample(*arguments("meta"))]
    assert shapes == [(2, 3), (2,)]


@pytest.mark.parametrize("name", ["write_cache", "paged_decode", "paged_prefill", "mla_decode"])
def test_each_op_declares_what_it_mutates(name: str) -> None:
    schema = getattr(torch.ops.forebay, name).default._schema
    assert [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
