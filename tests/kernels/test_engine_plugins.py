# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: E402
# (skip before importing what needs them)

import logging
import sys
import types
from typing import Any

import pytest

from forebay.kernels.plugins import sglang, trtllm, vllm

torch = pytest.importorskip("torch", reason="kernels need torch")
pytest.importorskip("triton", reason="kernels need triton")

from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.plugins.sglang_backend import Decode
from forebay.kernels.testing import assert_close, make_case


class Custom:
    """The member CUSTOM of vLLM's AttentionBackendEnum, as far as registering needs it."""

    def __init__(self) -> None:
        self.path = ""

    def is_overridden(self) -> bool:
        return bool(self.path)

    def get_path(self) -> str:
        return self.path


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Custom:
    """Stand in for vllm.v1.attention.backends.registry."""
    custom = Custom()
    module: Any = types.ModuleType("vllm.v1.attention.backends.registry")
    module.AttentionBackendEnum = types.SimpleNamespace(CUSTOM=custom)
    module.register_backend = lambda member, path: setattr(member, "path", path)
    parts = module.__name__.split(".")
    for i in range(1, len(parts)):
        name = ".".join(parts[:i])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return custom


def test_vllm_learns_our_backend_by_the_name_custom_however_often(registry: Custom) -> None:
    vllm.register()
    vllm.register()
    assert registry.path == vllm.BACKEND


def test_vllm_another_custom_backend_is_left_alone(
    registry: Custom, caplog: pytest.LogCaptureFixture
) -> None:
    registry.path = "other.Backend"
    with caplog.at_level(logging.WARNING):
        vllm.register()
    assert registry.path == "other.Backend"
    assert "taken by other.Backend" in caplog.text


def sglang_call(decode: Decode, case: Any, **options: Any) -> Any:
    out = torch.full_like(case.query, float("nan"))
    cache = case.cache
    got = decode(
        case.query, cache.key[:, 0], cache.value[:, 0], out, cache.indptr, cache.indices.long(),
        None, None, None, 8, case.query.shape[2] ** -0.5, 1.0, 1.0, page_size=1, **options,
    )  # fmt: skip
    return out, got


def test_sglang_decode_reads_token_slots_as_pages_of_one() -> None:
    case = make_case(seq_lens=[40, 17, 70], page=1, csr=True, dim=32)
    out, _ = sglang_call(Decode(lambda *_a, **_k: pytest.fail("ran the stock kernel"), 128), case)
    want, _ = attention_reference(query=case.query, cache=case.cache)
    assert_close(out, want, case.query.dtype)


def test_sglang_what_ours_does_not_cover_goes_to_the_stock_kernel_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = make_case(seq_lens=[20], page=1, csr=True, dim=32)
    decode = Decode(lambda *_args, **_options: "stock", 128)
    with caplog.at_level(logging.INFO):
        answers = [sglang_call(decode, case, has_mla=True)[1] for _ in range(2)]
    assert answers == ["stock", "stock"]
    assert [r.getMessage() for r in caplog.records] == ["forebay decode runs the stock kernel: MLA"]


def test_sglang_parts_of_a_context_are_left_to_the_stock_kernel() -> None:
    """It asks for fp32 and merges by the stock kernel's own sums, which ours does not write."""
    case = make_case(seq_lens=[20], page=1, csr=True, dim=32)
    decode = Decode(lambda *_args, **_options: "stock", 128)
    cache, wide = case.cache, case.query.double()
    assert cache.indices is not None
    told = (cache.key[:, 0], cache.value[:, 0], wide, cache.indptr, cache.indices.long())
    assert decode(case.query, *told, None, None, None, 8, 0.2, 1.0, 1.0) == "stock"


def test_sglang_registers_under_our_name(monkeypatch: pytest.MonkeyPatch) -> None:
    backends: dict[str, Any] = {}
    choices: list[str] = []
    registry: Any = types.ModuleType("sglang.srt.layers.attention.attention_registry")
    registry.ATTENTION_BACKENDS = backends
    registry.register_attention_backend = lambda name: lambda fn: backends.setdefault(name, fn)
    arguments: Any = types.ModuleType("sglang.srt.server_args")
    arguments.ATTENTION_BACKEND_CHOICES = choices
    arguments.add_attention_backend_choices = choices.extend
    for module in (registry, arguments):
        parts = module.__name__.split(".")
        for i in range(1, len(parts)):
            name = ".".join(parts[:i])
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setitem(sys.modules, arguments.__name__, arguments)
    sglang.register()
    sglang.register()
    assert backends == {"forebay": sglang.create_backend}
    assert choices == ["forebay"]


def test_trtllm_registers_the_ops_and_claims_no_more() -> None:
    assert trtllm.load()
    assert torch.ops.forebay.paged_decode.default is not None
