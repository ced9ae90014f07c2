# pyright: basic, reportMissingImports=false
# (SGLang, torch and triton are not installed where types are checked)
# ruff: noqa: ANN001, ANN003, ANN204, PLR0913, PLR0917
# (signatures are SGLang's)
"""SGLang's attention backend `forebay`: the stock Triton backend with our decode kernel.

The stock backend calls one function for a decode step, `decode_attention_fwd`; an instance of it
gets ours there, and everything else (cache write, extend, graphs, windows by index lists) stays.
What ours does not cover goes to the function it replaced, with one log line that says why.
Checked inside SGLang 0.5.23 on a CPU, by Triton's interpreter. Not yet run on a GPU in SGLang.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

from forebay.kernels.attention.decode import paged_decode
from forebay.kernels.attention.layout import PagedCache, Rule

__all__ = ["Decode", "make_backend"]

logger = logging.getLogger("sglang.forebay.kernels")


class Decode:
    """Stands in for SGLang's decode_attention_fwd, and keeps it for what ours does not cover."""

    def __init__(self, stock: Callable[..., Any], max_context: int) -> None:
        self.stock = stock
        self.max_context = max_context
        self._said: set[str] = set()

    def _why_not(self, q, k_buffer, o, scales, **options) -> str:
        if options.get("has_mla") or k_buffer.shape[-1] != q.shape[-1]:
            return "MLA"
        if o.dtype != q.dtype:
            # The parts of several GPUs are merged by what the stock kernel leaves in attn_lse.
            return "decode context parallelism"
        if k_buffer.dtype != q.dtype or any(s not in (None, 1.0) for s in scales):
            return f"KV cache dtype {k_buffer.dtype}"
        if options.get("score_mod") is not None:
            return "score_mod"
        if options.get("xai_temperature_len", -1) > 0:
            return "temperature by length"
        if any(s % 16 for s in k_buffer.stride()[:2]):
            return f"KV cache strides {k_buffer.stride()}"
        return ""

    def __call__(
        self, q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse,
        num_kv_splits, max_kv_splits, sm_scale, k_scale, v_scale, logit_cap=0.0, sinks=None,
        **options,
    ):  # fmt: skip
        """Decode one token a sequence over token slots, `[size, kv heads, dim]` buffers."""
        reason = self._why_not(q, k_buffer, o, (k_scale, v_scale), **options)
        if reason:
            if reason not in self._said:
                self._said.add(reason)
                logger.info("forebay decode runs the stock kernel: %s", reason)
            return self.stock(
                q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse,
                num_kv_splits, max_kv_splits, sm_scale, k_scale, v_scale,
                logit_cap=logit_cap, sinks=sinks, **options,
            )  # fmt: skip
        sequences = q.shape[0]
        indptr = kv_indptr[: sequences + 1]
        cache = PagedCache(
            k_buffer.unsqueeze(1),  # a page of one slot
            v_buffer.unsqueeze(1),
            # Inside a graph this is captured with the rest, so lengths follow the buffers.
            indptr[1:] - indptr[:-1],
            indptr=indptr,
            indices=kv_indices,
        )
        return paged_decode(
            query=q,
            cache=cache,
            max_seq_len=self.max_context,
            scale=sm_scale,
            rule=Rule(soft_cap=float(logit_cap or 0.0), sinks=sinks),
            out=o,
        )


def make_backend(runner: Any) -> Any:
    """Return a stock Triton backend whose decode function is ours."""
    from sglang.srt.layers.attention.triton_backend import (  # noqa: PLC0415 - reads SGLang's flags
        TritonAttnBackend,
    )

    backend = TritonAttnBackend(runner)
    length = int(runner.model_config.context_len)
    backend.decode_attention_fwd = torch.compiler.disable(
        Decode(backend.decode_attention_fwd, length)
    )
    logger.info("forebay decode is in place, up to %d tokens a sequence", length)
    return backend
