# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""The reference engine's KV cache: one strip of slots a sequence, drafts written past its end.

A draft's rows are attended to by their bits, on a GPU by the tree kernel (`paged_decode`), on a CPU
in plain torch. What was accepted is then moved together, the rest forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.kernels.speculative.llama import Attend, LlamaConfig

__all__ = ["Cache"]

_PAGE = 16


class Cache:
    """Keys and values of some sequences, for each layer.

    kv: `[layers, 2, rows, slots, kv heads, dim]`, slots a multiple of 16; lengths: of each row.
    """

    def __init__(self, kv: torch.Tensor, lengths: list[int]) -> None:
        self._kv = kv
        self.lengths = lengths
        self.device = kv.device
        self.slots = kv.shape[3]
        self._kernel = kv.is_cuda and kv.dtype in (torch.float16, torch.bfloat16)
        shape = (len(lengths), self.slots // _PAGE)
        pages = torch.arange(shape[0] * shape[1], dtype=torch.int32, device=kv.device)
        self._table = pages.view(shape)

    @classmethod
    def empty(
        cls, config: LlamaConfig, *, layers: int, rows: int, slots: int, like: torch.Tensor
    ) -> Cache:
        """Make room for `rows` sequences of up to `slots` tokens; type and place are `like`'s."""
        slots = -(-slots // _PAGE) * _PAGE
        shape = (layers, 2, rows, slots, config.num_key_value_heads, config.head_dim)
        return cls(torch.zeros(shape, dtype=like.dtype, device=like.device), [0] * rows)

    def alone(self, row: int) -> Cache:
        """View one sequence as a cache of its own, over the same memory."""
        return Cache(self._kv[:, :, row : row + 1], [self.lengths[row]])

    def window(self, sees: Sequence[Sequence[int]] | None, count: int) -> Callable[[int], Attend]:
        """Attention for one run, layer by layer: who sees whom among its `count` new rows, as bits.

        sees: for each sequence its rows' bits; without it each row sees those before it.
        """
        starts = torch.tensor(self.lengths, device=self.device)
        at = starts[:, None] + torch.arange(count, device=self.device)
        if self._kernel and count <= 64 and sees is not None:
            signed = [b - (1 << 64) if b >> 63 else b for bits in sees for b in bits]
            tree = torch.tensor(signed, dtype=torch.int64, device=self.device)
            return lambda layer: self._paged(layer, at, tree)
        visible = self._visible(sees, starts, count)
        return lambda layer: self._dense(layer, at, visible)

    def keep(self, row: int, kept: Sequence[int]) -> None:
        """Move a sequence's accepted rows, in order, right behind the root's, and let others go."""
        start = self.lengths[row]
        if list(kept) != list(range(1, len(kept) + 1)):
            source = torch.tensor([start + each for each in kept], device=self.device)
            self._kv[:, :, row, start + 1 : start + 1 + len(kept)] = self._kv[:, :, row, source]
        self.lengths[row] = start + 1 + len(kept)

    def _write(self, layer: int, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        rows = torch.arange(at.shape[0], device=self.device)[:, None]
        self._kv[layer, 0][rows, at] = k.to(self._kv.dtype)
        self._kv[layer, 1][rows, at] = v.to(self._kv.dtype)

    def _visible(
        self, sees: Sequence[Sequence[int]] | None, starts: torch.Tensor, count: int
    ) -> torch.Tensor:
        if sees is None:
            own = torch.ones(len(self.lengths), count, count, dtype=torch.bool, device=self.device)
            own = own.tril()
        else:
            bits = [[[b >> j & 1 for j in range(count)] for b in row] for row in sees]
            own = torch.tensor(bits, dtype=torch.bool, device=self.device)
        reach = max(self.lengths) + count
        slots = torch.arange(reach, device=self.device)
        visible = (slots < starts[:, None])[:, None].repeat(1, count, 1)
        for row, start in enumerate(self.lengths):
            visible[row, :, start : start + count] = own[row]
        return visible[:, None]

    def _dense(self, layer: int, at: torch.Tensor, visible: torch.Tensor) -> Attend:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._write(layer, at, k, v)
            keys, values = self._kv[layer][:, :, : visible.shape[-1]].transpose(2, 3)
            group = q.shape[2] // k.shape[2]
            keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
            out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=visible)
            return out.transpose(1, 2)

        return attend

    def _paged(self, layer: int, at: torch.Tensor, tree: torch.Tensor) -> Attend:
        from forebay.kernels.attention.decode import paged_decode  # noqa: PLC0415 - needs triton
        from forebay.kernels.attention.layout import PagedCache, Rule  # noqa: PLC0415 - likewise

        lens = at[:, -1].int() + 1

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._write(layer, at, k, v)
            key, value = self._kv[layer].view(2, -1, _PAGE, *k.shape[2:])
            out = paged_decode(
                query=q.flatten(0, 1).to(key.dtype),
                cache=PagedCache(key, value, lens, self._table),
                max_seq_len=self.slots,
                max_query_len=q.shape[1],
                rule=Rule(tree=tree),
                trusted=True,
            )
            return out.view_as(q)

        return attend
