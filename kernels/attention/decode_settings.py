# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: PLR0913
# (which kernel runs depends on much)
"""Decode's launch settings, and which of its kernels a step runs."""

import os
from dataclasses import asdict, dataclass, replace

import torch
import triton

from forebay.kernels._common.host import config_for, next_power_of_2, sm_count

from .launch import comes_in_pages, gluon_fits, gluon_kernel
from .layout import PagedCache, Rule
from .rope import rope_config
from .splits import MIN_TOKENS

__all__ = ["DecodeConfig", "decode_config", "fitted", "programs_of", "walking"]

PLANNED_SEQUENCES = 64
NARROW = "FOREBAY_NARROW_DECODE"
"""In the environment, 0 keeps decode_narrow from running: the way back to Triton's kernel."""


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Launch settings of stage 1.

    resident: programs expected on an SM at a time. min_tokens: of a split, as far as it goes.
    fused: states of a sequence, on average, up to which the last program merges them; 0: never.
    hopper: tokens of a tile in the Gluon kernels, of decode_narrow up to 32 rows and decode_hopper
    past that, which run where they apply; hopper_stages: their buffers of keys, and of values (of
    decode_narrow8 four or more leave an SM two programs of 8 rows in place of four);
    hopper_resident: as resident, of theirs.
    hoist: let the compiler work out before the loop over items what does not change in it.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    resident: int
    peel: bool = True
    min_tokens: int = MIN_TOKENS
    fused: int = 4
    hoist: bool = False
    hopper: int = 0
    hopper_stages: int = 2
    hopper_resident: int = 2


def decode_config(
    *,
    query: torch.Tensor,
    cache: PagedCache,
    max_query_len: int = 1,
    policy: str = "occupancy",
) -> DecodeConfig:
    """Look the launch settings up by element sizes, dim and rows.

    A table may have others for a crowded GPU, one and a half times the programs that it has room
    for before anything is cut: a deeper pipeline pays there, and costs a start elsewhere. And for
    few programs, up to an eighth of those: all are cut then, and small tiles end sooner. Those are
    other bits, so not where `fixed` promises the same in any batch.
    """
    group = query.shape[1] // cache.kv_heads
    rows = min(max(16, next_power_of_2(group * max_query_len)), 128)
    key_bytes = cache.key.element_size()
    dim = next_power_of_2(query.shape[2])
    built_in = {
        "block_m": min(rows, 64),
        "block_n": 64 if key_bytes * dim >= 256 else 128,
        "num_warps": 4,
        "num_stages": 3,
        "resident": 2 if rows > 16 else 3,
    }
    if key_bytes == 4:
        built_in |= {"block_n": 32, "num_stages": 2}
    key = f"kv{key_bytes * 8}-d{dim}-m{rows}"
    config = DecodeConfig(**config_for("decode", key, query.device, built_in))
    programs = programs_of(query, cache, config, max_query_len) * cache.seq_lens.shape[0]
    slots = sm_count(query.device) * config.resident
    if 8 * programs <= slots and policy != "fixed":
        key += "-few"
    elif 2 * programs >= 3 * slots:
        key += "-crowded"
    return DecodeConfig(**config_for("decode", key, query.device, asdict(config)))


def programs_of(query: torch.Tensor, cache: PagedCache, config: DecodeConfig, max_q: int) -> int:
    """Return programs that share an item's tokens: kv heads times row blocks."""
    group = query.shape[1] // cache.kv_heads
    return cache.kv_heads * -(-group * max_q // config.block_m)


def _narrow_pays(programs: int, sequences: int, sms: int, *, planned: bool) -> bool:
    """Whether decode_narrow was the quicker, of sweeps on an H200.

    Its programs fill the GPU one to an SM, or two. Where neither comes out, more and smaller
    ones of the Triton kernel end more evenly; likewise planned, where many are given nothing to do.
    """
    if planned:
        return sequences <= PLANNED_SEQUENCES
    pairs = programs * sequences
    return pairs <= sms or 1.8 * sms <= pairs <= 2 * sms or pairs > 3 * sms


def _narrow8_pays(
    query: torch.Tensor, cache: PagedCache, pairs: int, sms: int, *, max_query_len: int, policy: str
) -> bool:
    """Whether decode_narrow8 was the quicker, likewise; its programs are two to an SM.

    With 9 to 16 rows three fit on an SM, not four, and the next launch's come to lie unevenly.
    """
    if 8 < query.shape[1] // cache.kv_heads * max_query_len <= 16:
        return 8 * pairs <= sms
    return policy == "balanced" or pairs <= 2 * sms or pairs >= 3.8 * sms


def fitted(
    config: DecodeConfig,
    query: torch.Tensor,
    cache: PagedCache,
    *,
    rule: Rule,
    max_query_len: int,
    policy: str,
) -> DecodeConfig:
    """Return settings as the Gluon kernel has them where one runs, and without it elsewhere.

    `fixed` promises the same bits in any batch, so that a sequence must get the same kernel in all.
    """
    fits = (
        config.hopper > 0
        and gluon_fits(query, cache, rule, narrow=config.block_m < 64)
        and gluon_kernel("decode_hopper", triton.__version__) is not None
    )
    stages = config.hopper_stages
    if fits and config.block_m < 64:
        sequences, sms = cache.seq_lens.shape[0], sm_count(query.device)
        programs, planned = programs_of(query, cache, config, max_query_len), policy == "balanced"
        fits = (
            os.environ.get(NARROW) != "0"
            and programs == cache.kv_heads  # it has all rows of a kv head in one program
            and policy in {"occupancy", "balanced"}
            and comes_in_pages(cache)
        )
        if cache.is_quantised:
            fits = fits and _narrow8_pays(
                query, cache, programs * sequences, sms, max_query_len=max_query_len, policy=policy
            )
            if planned and sequences > PLANNED_SEQUENCES:
                # Where many parts have no work, the others of four to an SM lie unevenly.
                stages = max(stages, 4)
        else:
            fits = fits and _narrow_pays(programs, sequences, sms, planned=planned)
    if not fits:
        return rope_config(replace(config, hopper=0), rule, cache)
    return replace(
        config, block_n=config.hopper, resident=config.hopper_resident, hopper_stages=stages
    )


def walking(config: DecodeConfig, block_n: int, *, window: bool = False) -> DecodeConfig:
    """Return settings that walk a plan whose items start at multiples of block_n tokens.

    A larger tile would begin inside one, and reach past its page. Such a plan was made for other
    settings, as before FOREBAY_NARROW_DECODE was set: Triton's kernel takes tiles of any size. With
    a window the item that has the sinks is known by its start, which a smaller tile rounds less.
    """
    if block_n == config.block_n or (block_n % config.block_n == 0 and not window):
        return config
    return replace(config, hopper=0, block_n=block_n)
