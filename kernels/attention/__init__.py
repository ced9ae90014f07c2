"""Attention over a paged KV cache: decode, verify, prefill, MLA, cache write, merging of states.

Words: `query` is `[tokens, query heads, dim]`; a cache is `[pages, slots, kv heads, dim]`, read in
place by its strides whatever the engine's storage order; a *state* is an output with its natural
logarithm of the softmax norm (`lse`). Every op has a plain torch twin in `reference`, which also
says what the op means. Import the modules themselves: this file loads nothing.
"""

__all__: list[str] = []
