# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""The nouns of the attention ops: the paged cache, and the rule that says who sees whom."""

from dataclasses import dataclass

import torch

from forebay.kernels._common.host import check

__all__ = ["QUANTISED", "PagedCache", "Rope", "Rule"]

QUANTISED = frozenset({torch.int8, torch.float8_e4m3fn})
"""Types of a cache that has scales."""


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's KV cache and where each sequence's tokens lie in it.

    key, value: `[pages, slots, kv heads, dim]` views with unit stride on dim, any other strides
    multiples of 16 elements; value may have another dim than key.
    seq_lens: `[sequences]` int32, tokens in the cache including the queries' own.
    Either block_table `[sequences, columns]` int32, or indptr `[sequences + 1]` and indices, flat
    page ids, both int32.
    key_scale, value_scale: `[pages, slots, kv heads]` fp32 of equal strides, for int8 and e4m3.
    """

    key: torch.Tensor
    value: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor | None = None
    indptr: torch.Tensor | None = None
    indices: torch.Tensor | None = None
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    @property
    def page(self) -> int:
        """Slots per page."""
        return self.key.shape[1]

    @property
    def kv_heads(self) -> int:
        """Key-value heads."""
        return self.key.shape[2]

    @property
    def is_quantised(self) -> bool:
        """Whether the payload is 8-bit with a scale per token and head."""
        return self.key_scale is not None

    def validate(self, query: torch.Tensor) -> None:
        """Raise ValueError where the kernels could not read this cache in place."""
        check(query.ndim == 3, "query must be [tokens, heads, dim]")
        check(query.stride(2) == 1, "query must have unit stride on dim")
        check(query.shape[1] % self.kv_heads == 0, "query heads must be a multiple of kv heads")
        check(query.shape[2] == self.key.shape[3], "query and key dim differ")
        check(
            (self.block_table is None) != (self.indptr is None),
            "give either block_table or indptr with indices",
        )
        check((self.indptr is None) == (self.indices is None), "indptr and indices go together")
        check(
            (self.key_scale is None) == (self.value_scale is None),
            "key_scale and value_scale go together",
        )
        if self.key_scale is not None and self.value_scale is not None:
            types = {self.key.dtype, self.value.dtype}
            check(
                len(types) == 1 and types <= QUANTISED,
                f"a cache with scales must be int8 or float8_e4m3fn, not {types}",
            )
            check(
                self.key_scale.dtype == self.value_scale.dtype == torch.float32
                and self.key_scale.stride() == self.value_scale.stride(),
                "scales must be fp32, keys' and values' with equal strides",
            )
        for name, cache in (("key", self.key), ("value", self.value)):
            check(cache.ndim == 4, f"{name} cache must be [pages, slots, kv heads, dim]")
            check(cache.stride(3) == 1, f"{name} cache must have unit stride on dim")
            aligned = all(
                s % 16 == 0 or n == 1
                for s, n in zip(cache.stride()[:3], cache.shape[:3], strict=True)
            )
            # Without it the compiler drops 16-byte asynchronous copies and spills registers.
            check(aligned, f"{name} cache strides must be multiples of 16, not {cache.stride()}")
            far = (self.kv_heads - 1) * cache.stride(2)
            check(far < 1 << 31, f"{name} cache heads must lie within 2^31 elements of each other")
        for name, numbers in (("seq_lens", self.seq_lens), ("page ids", self.index()[0])):
            side_by_side = numbers.stride(-1) == 1 or numbers.shape[-1] <= 1
            check(side_by_side, f"{name} must lie side by side, not {numbers.stride()} apart")

    def index(self) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """Table pointer, indptr or None, and the table's row stride."""
        if self.block_table is not None:
            return self.block_table, None, self.block_table.stride(0)
        assert self.indices is not None
        return self.indices, self.indptr, 0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding for a cache whose keys are not rotated yet (mode `rerope`).

    cos, sin: `[rows, pairs]` fp32, contiguous: row i is of position i, a column is of one pair of
    dims; angles must grow evenly with i, scaled as you like (linear, YaRN; a factor in both too).
    `window + max(sink_tokens, 127)` rows are enough for any step.
    interleaved: a pair is dims 2i and 2i + 1 (GPT-J); otherwise i and i + pairs (NeoX, Llama).
    Dims past the first 2 * pairs are not rotated.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool = False

    @property
    def dim(self) -> int:
        """Leading dims of a head that are rotated."""
        return 2 * self.cos.shape[1]

    def validate(self, query: torch.Tensor) -> None:
        """Raise ValueError for tables that do not go with this query."""
        for name, table in (("cos", self.cos), ("sin", self.sin)):
            check(table.ndim == 2, f"rope {name} must be [rows, pairs]")
            check(table.dtype == torch.float32, f"rope {name} must be fp32, not {table.dtype}")
            check(table.is_contiguous(), f"rope {name} must be contiguous")
            check(table.device == query.device, f"rope {name} must lie on the query's device")
        check(self.cos.shape == self.sin.shape, "rope cos and sin differ in shape")
        check(
            2 <= self.dim <= query.shape[2],
            f"rope tables rotate {self.dim} dims, and a head has {query.shape[2]}",
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """Who sees whom, beyond causal order, and what happens to a score.

    window: a row at position p sees p - window < j <= p; 0 means all. Keys keep the rotation they
    were cached with (mode `abs`), unless there is rope.
    sink_tokens: leading tokens visible outside the window too (StreamingLLM).
    rope: give query and cache unrotated, and both are rotated here, at their index in what the
    row sees: sinks first, then the window (mode `rerope`). Needs a window, and takes no tree.
    soft_cap: scores become cap * tanh(score / cap); 0 means off.
    sinks: `[query heads]`, one extra logit per head that has no value (as in gpt-oss).
    tree: `[tokens]` int64, bit j of a row is set where the row sees draft node j of its own
    sequence (ancestors and itself); the nodes are the last tokens of the cache.
    """

    window: int = 0
    sink_tokens: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None
    tree: torch.Tensor | None = None
    rope: Rope | None = None

    def validate(self, query: torch.Tensor) -> None:
        """Raise ValueError for combinations that have no meaning here, or not with this query."""
        check(self.tree is None or self.rope is None, "a tree mask with rope is not supported")
        check(self.tree is None or not self.window, "a tree mask with a window is not supported")
        check(not self.sink_tokens or self.window > 0, "sink_tokens needs a window")
        check(self.rope is None or self.window > 0, "rope needs a window")
        if self.rope is not None:
            self.rope.validate(query)
