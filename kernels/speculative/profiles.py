"""What switches each way of speculation on in each engine, or that the engine has none of it.

The versions are those whose sources were read: vLLM 0.26 and 0.33, SGLang 0.5.23, TensorRT-LLM's
1.2 line, llama.cpp of November 2026. `{head}`, `{tokens}` and `{store}` stand for what the caller
gives.
"""

from __future__ import annotations

import json

__all__ = ["ENGINES", "METHODS", "flags"]

METHODS = ("lookup", "suffix", "rest", "lookahead", "medusa", "eagle", "eagle3")
ENGINES = ("vllm-0.26", "vllm-0.33", "sglang-0.5", "trtllm-1.2", "llamacpp")

_DRAFTER = "forebay.kernels.plugins.vllm_drafter.ForebayDrafter"


def _vllm(**told: object) -> str:
    said = json.dumps({**told, "num_speculative_tokens": "{tokens}"})
    return f"--speculative-config '{said.replace(chr(34) + '{tokens}' + chr(34), '{tokens}')}'"


_OURS = _vllm(method="custom_class", model=_DRAFTER)
_WITH_STORE = _OURS + """ --additional-config '{"forebay": {"store": "{store}"}}'"""
_VLLM = {
    "lookup": _OURS,
    "suffix": _OURS,
    "rest": _WITH_STORE,
    "eagle": _vllm(method="eagle", model="{head}"),
    "eagle3": _vllm(method="eagle3", model="{head}"),
}
_SGLANG = (
    "--speculative-draft-model-path {head} --speculative-num-steps {tokens}"
    " --speculative-eagle-topk 1 --speculative-num-draft-tokens {rows}"
)
_TABLE: dict[str, dict[str, str]] = {
    "vllm-0.26": {**_VLLM, "medusa": _vllm(method="medusa", model="{head}")},
    "vllm-0.33": _VLLM,
    "sglang-0.5": {
        "lookup": "--speculative-algorithm NGRAM --speculative-num-draft-tokens {rows}",
        "rest": "--speculative-algorithm NGRAM --speculative-num-draft-tokens {rows}"
        " --speculative-ngram-external-corpus-path {store}"
        " --speculative-ngram-external-sam-budget {tokens}",
        "eagle": f"--speculative-algorithm EAGLE {_SGLANG.replace('{head}', '{head}/sglang')}",
        "eagle3": f"--speculative-algorithm EAGLE3 {_SGLANG}",
    },
    "trtllm-1.2": {
        "lookup": "speculative_config: {decoding_type: NGram, max_draft_len: {tokens}}",
        "eagle3": "speculative_config: {decoding_type: Eagle3, max_draft_len: {tokens},"
        " speculative_model: {head}}",
        "rest": "in Python: UserProvidedDecodingConfig(max_draft_len={tokens},"
        " drafter=forebay.kernels.plugins.trtllm_drafter.make_drafter({tokens}, store='{store}'))",
        "suffix": "in Python: UserProvidedDecodingConfig(max_draft_len={tokens},"
        " drafter=forebay.kernels.plugins.trtllm_drafter.make_drafter({tokens}))",
    },
    "llamacpp": {
        "lookup": "--spec-type ngram-simple --spec-draft-n-max {tokens}",
        "rest": "--spec-type ngram-cache --lookup-cache-static {store} --spec-draft-n-max {tokens}",
        "eagle3": "--spec-type draft-eagle3 -md {head} --spec-draft-n-max {tokens}",
    },
}
_WHY = {
    ("vllm-0.33", "medusa"): "Medusa was taken out after 0.26",
    ("trtllm-1.2", "medusa"): "only its TensorRT backend has Medusa",
    ("trtllm-1.2", "lookahead"): "only its TensorRT backend has lookahead",
}


def flags(
    engine: str, method: str, *, head: str = "HEAD", store: str = "STORE", tokens: int = 4
) -> str | None:
    """Return what to start an engine with; None where it has no such method."""
    found = _TABLE[engine].get(method)
    if found is None:
        return None
    for name, value in (("head", head), ("store", store), ("tokens", tokens), ("rows", tokens + 1)):
        found = found.replace("{" + name + "}", str(value))
    return found


def why_not(engine: str, method: str) -> str:
    """Say that an engine has no such method."""
    return _WHY.get((engine, method), f"not in {engine}")
