"""What engines say of their drafts."""

from __future__ import annotations

import pytest

from forebay.adapters.speculation import read_reading
from forebay.scheduler.speculation import Reading

VLLM = b"""# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 795.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3180.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 2290.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 700.0
"""
SGLANG = b"""sglang:spec_accept_length{model_name="m"} 3.5
sglang:spec_accept_rate{model_name="m"} 0.62
"""
LLAMACPP = b"""llamacpp:spec_decode_num_drafts_total 10
llamacpp:spec_decode_num_draft_tokens_total 30
llamacpp:spec_decode_num_accepted_tokens_total 12
"""
TRTLLM = b"""trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 30.0
trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 12.0
"""


@pytest.mark.parametrize(
    ("engine", "text", "reading"),
    [
        ("vllm", VLLM, Reading(800, 3200, 2300)),
        ("sglang", SGLANG, Reading(rate=0.62, length=2.5)),
        ("llamacpp", LLAMACPP, Reading(10, 30, 12)),
        ("trtllm", TRTLLM, Reading(30, 30, 12)),
        ("vllm", b"vllm:num_requests_running 1\n", None),
        ("sglang", b"", None),
    ],
)
def test_each_engines_counters_are_read(engine: str, text: bytes, reading: Reading | None):
    assert read_reading(engine, text) == reading
