# pyright: basic, reportMissingImports=false
# (vLLM, torch and triton are not installed where types are checked)
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN204, ANN205, D102, PLR0913, PLR0917
# (signatures are vLLM's)
"""vLLM's attention backend FOREBAY, selected by `--attention-backend CUSTOM`.

A subclass of the stock Triton backend: it keeps that backend's cache shape, checks and metadata,
and replaces three steps, cache write, decode and prefill. A layer or a step that ours do not cover
runs the stock code, with one log line that says why. Decode and prefill rows of one batch go to
their own kernels; the decode plan is made once a step and shared by all layers. Checked against
vLLM 0.26 on a GPU; 0.33 differs in the cache's shape, which is read off the tensor.
"""

import logging
from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from forebay.kernels.attention.decode import (
    MAX_ROWS_TOKENS,
    DecodeConfig,
    Workspace,
    decode_config,
    decode_plan,
    paged_decode,
)
from forebay.kernels.attention.kv_write import write_cache
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.prefill import paged_prefill
from forebay.kernels.attention.splits import Plan

__all__ = ["ForebayAttentionBackend", "ForebayAttentionImpl", "ForebayMetadataBuilder"]

logger = logging.getLogger("vllm.forebay.kernels")

_SAID: set[str] = set()


def say_once(text: str) -> None:
    """Log a line the first time it comes up in this process."""
    if text not in _SAID:
        _SAID.add(text)
        logger.info("FOREBAY attention: %s", text)


@dataclass(frozen=True, slots=True)
class Step:
    """How one step's batch divides: leading decode sequences, then prefills."""

    decodes: int
    decode_tokens: int
    decode_query_len: int
    cu_decode: torch.Tensor | None
    cu_prefill: torch.Tensor | None
    plan: Plan | None
    workspace: Workspace
    max_seq_len: int


def cache_views(kv_cache: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Key and value as `[pages, slots, heads, dim]` views, or None for a shape we do not know."""
    shape = kv_cache.shape
    if kv_cache.ndim == 4 and shape[3] == 2 * dim:  # [pages, heads, slots, key then value]
        both = kv_cache.transpose(1, 2)
        return both[..., :dim], both[..., dim:]
    if kv_cache.ndim == 5 and shape[4] == dim and shape[1] == 2:  # [pages, 2, slots, heads, dim]
        return kv_cache[:, 0], kv_cache[:, 1]
    if kv_cache.ndim == 5 and shape[4] == dim and shape[0] == 2:
        return kv_cache[0], kv_cache[1]
    return None


def rule_of(vllm_config, layer_names) -> Rule:
    """Return the rule of a builder's layers; those with a window make no use of its plan."""
    layers = getattr(vllm_config.compilation_config, "static_forward_context", {})
    rule = getattr(getattr(layers.get(layer_names[0]), "impl", None), "_rule", None)
    return rule if isinstance(rule, Rule) and not rule.window else Rule()


class ForebayMetadataBuilder(TritonAttentionMetadataBuilder):
    """Adds the division of the batch and the decode plan to the stock metadata.

    A CUDA graph holds the addresses of one step's tensors. So what a step hands over lies in
    buffers of the builder's or of vLLM's, and which of them follows from the number of sequences
    and the longest row alone, which are the graph's: each step that replays it fills the same ones.
    """

    # Full graphs for steps whose sequences all bring as many tokens, piecewise ones for the rest.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Of later versions: drafts step on without a build, for which a plan would be out of date.
        self.supports_draft_decode_metadata_update = False
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        self.decode_rows = min(self.reorder_batch_threshold or 1, MAX_ROWS_TOKENS)
        self.max_model_len = vllm_config.model_config.max_model_len
        self.most = vllm_config.scheduler_config.max_num_seqs
        dtype = vllm_config.model_config.dtype
        # These layers' own: other layers of the model may have other heads.
        kv_heads, dim = kv_cache_spec.num_kv_heads, kv_cache_spec.head_size
        # Stand-ins: the plan depends on the rule and their shapes and types only.
        self._query = torch.empty(1, self.num_heads_q, dim, dtype=dtype, device=device)
        self._cache = torch.empty(1, self.block_size, kv_heads, dim, dtype=dtype, device=device)
        self._prefill_starts = torch.empty(self.most + 1, dtype=torch.int32, device=device)
        self._rule = rule_of(vllm_config, layer_names)
        self._configs: dict[int, DecodeConfig] = {}
        self._plans: dict[tuple[int, int], Plan] = {}
        lens = torch.zeros(self.most, dtype=torch.int32, device=device)
        items = max(self._plan(lens, None, rows).capacity for rows in (1, self.decode_rows))
        self._workspace = Workspace.allocate(
            items + self.most, self.decode_rows, self.num_heads_q, dim, device
        )
        say_once(f"decode by split-KV up to {self.decode_rows} new tokens a sequence")

    def _stand_in(self, seq_lens) -> PagedCache:
        """Return a cache that gets the same kernel as the layers' own: no number in it is read."""
        return PagedCache(self._cache, self._cache, seq_lens, block_table=seq_lens[:, None])

    def _plan(self, seq_lens, cu_query, rows: int) -> Plan:
        """Make the plan in buffers that stay in place for this number of sequences."""
        cache = self._stand_in(seq_lens)
        if rows not in self._configs:
            self._configs[rows] = decode_config(query=self._query, cache=cache, max_query_len=rows)
        key = (seq_lens.shape[0], rows)
        plan = decode_plan(
            query=self._query,
            cache=cache,
            cu_query=cu_query,
            max_query_len=rows,
            rule=self._rule,
            config=self._configs[rows],
            out=self._plans.get(key),
        )
        self._plans[key] = plan
        return plan

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):  # noqa: FBT002 - the engine's signature
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        metadata.forebay = self._step(common_attn_metadata)
        return metadata

    def build_for_cudagraph_capture(self, common_attn_metadata):
        metadata = super().build_for_cudagraph_capture(common_attn_metadata)
        # The stock builder has just set all lengths to 1: plan for those.
        metadata.forebay = self._step(common_attn_metadata)
        return metadata

    def _step(self, common) -> Step | None:
        if not isinstance(common.causal, bool) or not common.causal:
            return None
        rows = self.decode_rows
        sequences, tokens = common.num_reqs, common.num_actual_tokens
        decodes, decode_tokens = sequences, tokens
        if common.max_query_len > rows:
            starts = common.query_start_loc_cpu[: sequences + 1]
            longer = (starts[1:] - starts[:-1]) > rows
            decodes = int(longer.int().argmax())
            decode_tokens = int(starts[decodes])
        query_len = 1 if common.max_query_len == 1 else rows
        plan = cu_decode = cu_prefill = None
        if decodes:
            if query_len > 1 or decode_tokens != decodes:
                cu_decode = common.query_start_loc[: decodes + 1]
            plan = self._plan(common.seq_lens[:decodes], cu_decode, query_len)
        if decodes < sequences:
            cu_prefill = self._prefill_starts[: sequences - decodes + 1]
            starts = common.query_start_loc[decodes : sequences + 1]
            torch.sub(starts, decode_tokens, out=cu_prefill)
        return Step(
            decodes=decodes,
            decode_tokens=decode_tokens,
            decode_query_len=query_len,
            cu_decode=cu_decode,
            cu_prefill=cu_prefill,
            plan=plan,
            workspace=self._workspace,
            max_seq_len=self.max_model_len,
        )


class ForebayAttentionImpl(TritonAttentionImpl):
    """Runs our kernels where they apply, and the stock ones elsewhere."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        window = self.sliding_window[0] + 1
        self._rule = Rule(
            window=max(window, 0), soft_cap=float(self.logits_soft_cap or 0.0), sinks=self.sinks
        )
        self._views: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._reason = self._why_not()
        if self._reason:
            say_once(f"layers run the stock TRITON_ATTN backend: {self._reason}")

    def _why_not(self) -> str:
        """Return why this layer cannot run ours, or nothing."""
        if self.attn_type != AttentionType.DECODER:
            return f"attention type {self.attn_type}"
        if self.alibi_slopes is not None or getattr(self, "use_alibi_sqrt", False):
            return "ALiBi"
        if getattr(self, "chunk_lookback", -1) != -1:
            return "chunked local attention"
        if self.kv_cache_dtype not in ("auto", "bfloat16", "float16"):
            return f"KV cache dtype {self.kv_cache_dtype}"
        if not 16 <= self.head_size <= 256 or self.head_size % 16:
            return f"head size {self.head_size}"
        if self.num_queries_per_kv > MAX_ROWS_TOKENS:
            return f"{self.num_queries_per_kv} query heads per KV head"
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
            return "needs an NVIDIA GPU of compute capability 8.0 or more"
        return ""

    def _key_value(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self._reason or not kv_cache.numel():  # empty while vLLM measures memory
            return None
        if self._views is not None and self._views[0] is kv_cache:
            return self._views[1], self._views[2]
        views = cache_views(kv_cache, self.head_size)
        if views is None or any(s % 16 for s in views[0].stride()[:3]):
            self._reason = f"KV cache shape {tuple(kv_cache.shape)}"
            say_once(f"layers run the stock TRITON_ATTN backend: {self._reason}")
            return None
        self._views = (kv_cache, *views)
        return views

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        views = self._key_value(kv_cache)
        if views is None:
            return super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        write_cache(
            key=key, value=value, key_cache=views[0], value_cache=views[1], slots=slot_mapping
        )
        return None

    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ):
        step = getattr(attn_metadata, "forebay", None)
        views = None if step is None else self._key_value(kv_cache)
        special = (
            output_scale is not None
            or output_block_scale is not None
            or getattr(attn_metadata, "mm_prefix_range_tensor", None) is not None
            or getattr(attn_metadata, "rswa_prefix_lens", None) is not None
        )
        if step is None or views is None or special:
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output,
                output_scale, output_block_scale,
            )  # fmt: skip
        heads = output.view(-1, self.num_heads, self.head_size)
        n, rows = step.decodes, step.decode_tokens
        if n:
            # A plan lists whole sequences; a layer with a window cuts what it can see by itself.
            paged_decode(
                query=query[:rows],
                cache=PagedCache(*views, attn_metadata.seq_lens[:n], attn_metadata.block_table[:n]),
                max_seq_len=step.max_seq_len,
                cu_query=step.cu_decode,
                max_query_len=step.decode_query_len,
                scale=self.scale,
                rule=self._rule,
                plan=None if self._rule.window else step.plan,
                workspace=None if self._rule.window else step.workspace,
                out=heads[:rows],
                trusted=True,
            )
        if step.cu_prefill is not None:
            last = attn_metadata.num_actual_tokens
            paged_prefill(
                query=query[rows:last],
                cache=PagedCache(*views, attn_metadata.seq_lens[n:], attn_metadata.block_table[n:]),
                cu_query=step.cu_prefill,
                scale=self.scale,
                rule=self._rule,
                out=heads[rows:last],
                trusted=True,
            )
        return output


class ForebayAttentionBackend(TritonAttentionBackend):
    """The class that the name CUSTOM stands for."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return ForebayAttentionImpl

    @staticmethod
    def get_builder_cls():
        return ForebayMetadataBuilder
