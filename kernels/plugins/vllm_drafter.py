# pyright: basic, reportMissingImports=false
# (vLLM and torch are not installed where types are checked)
"""vLLM's `custom_class` drafter: prompt lookup, suffix automaton and store in one.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "forebay.kernels.plugins.vllm_drafter.ForebayDrafter"}'
        --additional-config '{"forebay": {"store": "answers.store"}}'

vLLM hands over rows of token ids and no names, so a row is recognised by its tokens: it goes on
where a history ended, at the same row as in the step before or, after rows moved, at another. The
drafter runs on the CPU between two steps and makes vLLM use its older model runner. Drafts change
no output, only how many tokens a step yields.

vLLM says nothing of tenants either. A store given here is read for every request of this engine, so
it must hold one tenant's answers, or answers that the tenants of this engine share. With `collect`,
off by default, a share of the answers is kept as tokens, to build stores and train heads from.
"""

from __future__ import annotations

import json
import logging
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.kernels.speculative.collect import Collector
from forebay.kernels.speculative.drafter import Drafter, History
from forebay.kernels.speculative.store import StoreReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ForebayDrafter", "Rows", "flash_attention", "settings_of"]

logger = logging.getLogger("vllm.forebay.speculative")

_COLLECTS = {"collect", "collect_share", "collect_mb"}
_KEYS = {
    "store": str,
    "row_budget": int,
    "worth": float,
    "min_match": int,
    "collect": str,
    "collect_share": float,
    "collect_mb": float,
}
_KINDS = {str: "a path", int: "a whole number", float: "a number"}
_TAIL = 32  # last tokens of a history that a row must still hold


def settings_of(vllm_config: Any) -> dict[str, Any]:
    """Read `forebay` of --additional-config, or the JSON in FOREBAY_DRAFTER.

    Raises ValueError for a key that the drafter does not have, and for values that mean nothing.
    """
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get("forebay") if isinstance(additional, dict) else None
    if given is None:
        given = json.loads(os.environ.get("FOREBAY_DRAFTER") or "{}")
    if not isinstance(given, dict):
        raise ValueError("the drafter's settings must be a JSON object")  # noqa: TRY004 - a value
    if unknown := sorted(set(given) - _KEYS.keys()):
        raise ValueError(f"the drafter has no setting '{unknown[0]}', there are {sorted(_KEYS)}")
    for name, kind in _KEYS.items():
        value = given.get(name, kind())
        if isinstance(value, bool) or not isinstance(value, (kind, int) if kind is float else kind):
            raise ValueError(f"{name} must be {_KINDS[kind]}, not {value!r}")  # noqa: TRY004 - a value
    if not 0 < given.get("collect_share", 1) <= 1:
        raise ValueError(f"collect_share must be over 0 and up to 1, not {given['collect_share']}")
    if not given.get("collect_mb", 1) > 0:
        raise ValueError(f"collect_mb must be over 0, not {given['collect_mb']}")
    return given


class Rows:
    """Keep the histories of the batch's rows from step to step, whatever row they move to.

    ended: told of each history that is let go.
    """

    def __init__(self, ended: Callable[[History], None] | None = None) -> None:
        self._of_row: list[History | None] = []
        self._ended = ended

    def take(self, rows: Sequence[tuple[Any, int, Sequence[int]]]) -> list[History | None]:
        """Return each row's history, brought up to date; None for rows without new tokens.

        Each row is its token ids (anything with `tobytes` when sliced, 4 bytes a token), how many
        of them are the request's, and the newest of them. Histories of rows that are gone are let
        go.
        """
        before, left = self._of_row, dict.fromkeys(range(len(self._of_row)))
        now: list[History | None] = [None] * len(rows)
        moved: list[int] = []
        for row, (ids, count, new) in enumerate(rows):
            if not new:
                # A row in prefill, or one that this step left out, keeps what is known of it.
                if row < len(before) and self._goes_on(before[row], ids, count, ()):
                    now[row] = before[row]
                    left.pop(row, None)
            elif row < len(before) and self._goes_on(before[row], ids, count, new):
                now[row] = before[row]
                left.pop(row, None)
            else:
                moved.append(row)
        for row in moved:
            ids, count, new = rows[row]
            found = next((at for at in left if self._is(before[at], ids, count, new)), None)
            if found is None:
                now[row] = _start(ids, count, new)
            else:
                now[row] = before[found]
                left.pop(found)
        self._of_row = now
        if self._ended is not None:
            for gone in (before[at] for at in left):
                if gone is not None:
                    self._ended(gone)
        return [history if new else None for history, (_, _, new) in zip(now, rows, strict=True)]

    @staticmethod
    def _goes_on(history: History | None, ids: Any, count: int, new: Sequence[int]) -> bool:
        if history is None or len(history.tokens) != count - len(new):
            return False
        known = history.tokens
        start = max(0, len(known) - _TAIL)
        return (
            ids[start : len(known)].tobytes() == known[start:].tobytes()
            and ids[:_TAIL].tobytes()[: len(known) * 4] == known[:_TAIL].tobytes()
        )

    def _is(self, history: History | None, ids: Any, count: int, new: Sequence[int]) -> bool:
        """Compare every token: rows that moved are rare, and requests may begin and end alike."""
        return (
            history is not None
            and self._goes_on(history, ids, count, new)
            and ids[: len(history.tokens)].tobytes() == history.tokens.tobytes()
        )


def _start(ids: Any, count: int, new: Sequence[int]) -> History:
    return History(array("I", ids[: count - len(new)].tobytes()))


def _on_hopper() -> bool:
    import torch  # noqa: PLC0415 - the engine's, and slow

    cuda: Any = torch.cuda
    return cuda.is_available() and cuda.get_device_capability()[0] == 9


def flash_attention(head: int) -> int | None:
    """Return the version of FlashAttention that vLLM runs for heads that wide; None for no such.

    Where vLLM's way to tell has moved, its choice on Hopper is supposed.
    """
    try:
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version  # noqa: PLC0415 - vLLM's, and slow
    except ImportError:
        return 3 if _on_hopper() else None
    try:
        return get_flash_attn_version(head_size=head)
    except TypeError:  # one that does not ask for heads
        return get_flash_attn_version()


def _may_run_flash_attention(vllm_config: Any) -> bool:
    """Whether some layers may run FLASH_ATTN: it was asked for, or vLLM chooses."""
    attention = getattr(vllm_config, "attention_config", None)
    asked = [getattr(attention, "backend", None)]
    asked += (getattr(attention, "backend_per_kind", None) or {}).values()
    names = {str(getattr(each, "name", each) or "AUTO").upper() for each in asked}
    return bool(names & {"AUTO", "FLASH_ATTN", "FLASH_ATTN_DIFFKV"})


def _check_graphs(vllm_config: Any, version: Callable[[int], int | None]) -> None:
    """Raise ValueError where vLLM's graphs would make wrong tokens of steps without a guess.

    With cudagraph_mode FULL, a graph is captured for N tokens in rows as long as that, and replayed
    for rows of one token as well. FlashAttention 3 takes causal rows of one token for not causal
    where heads are up to 64 or over 128 wide, and then lays out its schedule otherwise than the
    captured kernel reads it (vLLM 0.26: benchmarks/check_full_graphs.py). Drafts differ in length,
    and steps without any cannot be kept from coming about: grammars and full batches take guesses
    away, contexts end. For MLA and models with recurrent layers vLLM lowers FULL by itself.
    """
    mode = getattr(getattr(vllm_config, "compilation_config", None), "cudagraph_mode", None)
    model = vllm_config.model_config
    lowered = getattr(model, "use_mla", False) or getattr(model, "is_hybrid", False)
    if (
        getattr(mode, "name", mode) != "FULL"
        or lowered
        or not _may_run_flash_attention(vllm_config)
    ):
        return
    head = int(model.get_head_size())
    if 64 < head <= 128 or version(head) != 3:
        return
    raise ValueError(
        f"cudagraph_mode FULL makes wrong tokens here: FlashAttention 3 attends wrongly in such "
        f"graphs with heads {head} wide. Leave --compilation-config's cudagraph_mode out, or take "
        f"--attention-backend TRITON_ATTN with it"
    )


def _collector(
    told: dict[str, Any], beside: ThreadPoolExecutor
) -> Callable[[History], None] | None:
    if "collect" not in told:
        return None
    collector = Collector(
        Path(told["collect"]),
        run=beside.submit,
        share=float(told.get("collect_share", 0.05)),
        most_bytes=int(float(told.get("collect_mb", 1024)) * (1 << 20)),
    )
    return collector.add


class ForebayDrafter:
    """What vLLM makes once in its worker and asks after every step."""

    def __init__(
        self, vllm_config: Any, version: Callable[[int], int | None] = flash_attention
    ) -> None:
        _check_graphs(vllm_config, version)
        settings = settings_of(vllm_config)
        store = settings.pop("store", None)
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forebay-drafter")
        self._reader = StoreReader(store, background=self._beside.submit) if store else None
        self._max_tokens = int(vllm_config.model_config.max_model_len)
        collects = {name: settings.pop(name) for name in _COLLECTS & set(settings)}
        self._rows = Rows(_collector(collects, self._beside))
        self._drafter = Drafter(
            most=int(vllm_config.speculative_config.num_speculative_tokens),
            vocab=int(vllm_config.model_config.get_vocab_size()),
            store=self._reader.contexts if self._reader else None,
            background=self._beside.submit,
            **settings,
        )
        logger.info("forebay drafts: store %s, %s", store or "none", settings or "defaults")

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """There is no model to load."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Guess for each row of the batch; an empty list where nothing is worth guessing.

        sampled_token_ids: what each row's last step yielded; num_tokens_no_spec `[rows]`: tokens of
        prompt and answer, those included; token_ids_cpu `[rows, max_model_len]` int32.
        """
        del slot_mappings
        rows = [
            (token_ids_cpu[row], int(num_tokens_no_spec[row]), new)
            for row, new in enumerate(sampled_token_ids)
        ]
        drafter, drafts = self._drafter, list[list[int]]()
        for history, (_, count, new) in zip(self._rows.take(rows), rows, strict=True):
            if history is None:
                drafts.append([])
                continue
            drafter.settle(history, new)
            history.extend(new)
            room = self._max_tokens - count - 1
            drafts.append(drafter.propose(history, rows=len(rows), room=room))
        return drafts
