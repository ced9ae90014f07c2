"""Named profiles of the engine model: how large an engine is, and how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine's size and step times, all in seconds and tokens.

    A step takes `step_s`, and for each prompt token computed `prefill_token_s`, for each pair of
    such a token and one before it `prefill_pair_s` (attention grows with the square), for each
    decoding sequence `decode_sequence_s`, and for each of its tokens read from the KV cache
    `context_token_s`.
    """

    name: str
    step_s: float
    prefill_token_s: float
    decode_sequence_s: float
    prefill_pair_s: float = 0.0
    context_token_s: float = 0.0
    overhead_s: float = 0.0
    """From receipt to the engine's queue (HTTP, tokenising): who drives the model waits for it."""
    schedules_ahead: bool = False
    """Each step is planned while the one before it runs, so who comes meanwhile waits for two."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_tokens: int = 16
    num_blocks: int = 16384
    max_model_len: int = 32768

    def __post_init__(self) -> None:
        if min(self.max_num_seqs, self.block_tokens, self.num_blocks, self.max_model_len) < 1:
            raise ValueError(f"profile {self.name}: sizes must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"profile {self.name}: max_num_batched_tokens must be at least max_num_seqs, "
                "so that each decoding sequence gets a token in each step"
            )


DEMO = Profile(
    name="demo",
    step_s=0.0145,
    prefill_token_s=20e-6,
    decode_sequence_s=0.1e-3,
    overhead_s=0.08,
    num_blocks=4096,
)
"""Pleasant for a person: first token after about 100 ms, then one every 15 ms."""

INSTANT = Profile(
    name="instant", step_s=0.0, prefill_token_s=0.0, decode_sequence_s=0.0, max_model_len=131072
)
"""Takes no time: for tests and for measuring what is in front of it."""

H200_8B = Profile(
    name="h200-8b",
    step_s=3.4e-3,
    prefill_token_s=31e-6,
    prefill_pair_s=1.3e-9,
    decode_sequence_s=5e-6,
    context_token_s=27e-9,
    schedules_ahead=True,
    num_blocks=16384,
    max_model_len=8192,
)
"""An 8B model on one H200, roughly: fitted to one measured run of vLLM 0.26.0 (512 prompt and 128
output tokens, 64 at once: 4,956 output tokens/s, median TTFT 567 ms, median TPOT 8.4 ms)."""

CPU_TINY = Profile(
    name="cpu-tiny",
    step_s=2.5512e-3,
    prefill_token_s=21.045e-6,
    prefill_pair_s=8.4079e-9,
    decode_sequence_s=0.15981e-3,
    overhead_s=5.4178e-3,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    block_tokens=32,
    num_blocks=65536,
    max_model_len=4096,
)
"""A model of 1.4 M parameters on vLLM 0.32.0 for CPUs, as `forebay calibrate` found it on two cores
of a Sapphire Rapids that others used too: good for orders of magnitude."""

PROFILES = {profile.name: profile for profile in (DEMO, INSTANT, H200_8B, CPU_TINY)}


def find_profile(name: str) -> Profile:
    """Return the profile of that name; raises ValueError that names the nearest one."""
    found = PROFILES.get(name)
    if found is not None:
        return found
    near = get_close_matches(name, PROFILES, n=1, cutoff=0.0)
    raise ValueError(f"no profile {name!r}: did you mean {near[0]!r} (of {', '.join(PROFILES)})")
