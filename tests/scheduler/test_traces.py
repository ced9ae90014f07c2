"""The readers of traces: each format, and what is told of a wrong line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from forebay.scheduler.traces import TraceRequest, format_of, parse

DATA = os.environ.get("FOREBAY_DATA", "")


def test_a_plain_csv_is_read_in_order_of_arrival() -> None:
    text = """arrival_s,prompt_tokens,output_tokens,tenant,max_tokens
11.5,7,8,b,
10,100,20,a,64
"""
    assert parse(text.splitlines()) == [
        TraceRequest(0.0, 100, 20, "a", max_tokens=64),
        TraceRequest(1.5, 7, 8, "b"),
    ]


def test_plain_json_lines_have_the_same_names() -> None:
    lines = [
        '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6, "session": "s"}',
        "",
        '{"arrival_s": 0.5, "prompt_tokens": 5, "output_tokens": 0}',
    ]
    assert parse(lines) == [TraceRequest(0.0, 5, 6, "", "s"), TraceRequest(0.5, 5, 1)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                '{"timestamp": 2000, "input_length": 900, "output_length": 5, "hash_ids": [0, 3]}',
                '{"timestamp": 2250, "input_length": 9, "output_length": 5, "hash_ids": [4]}',
            ],
            [
                TraceRequest(0.0, 900, 5, hashes=(0, 3), block_tokens=512),
                TraceRequest(0.25, 9, 5, hashes=(4,), block_tokens=512),
            ],
        ),
        (
            [
                "TIMESTAMP,ContextTokens,GeneratedTokens",
                "2023-11-16 18:15:46.5000000,374,44",
                "2023-11-16 18:16:46.7500000,396,109",
            ],
            [TraceRequest(0.0, 374, 44), TraceRequest(60.25, 396, 109)],
        ),
        (
            [
                "timestamp_s,client,input_tokens,output_tokens,reason_tokens",
                "0.5,30,14,1446,378",
                "0.75,2,15,16,0",
            ],
            [TraceRequest(0.0, 14, 1446, "30"), TraceRequest(0.25, 15, 16, "2")],
        ),
        (
            ["req_id,client,req_time_s,prompt_len,output_len", "0,13,0.0,13,199"],
            [TraceRequest(0.0, 13, 199, "13")],
        ),
    ],
    ids=["mooncake", "azure", "servegen", "vtc"],
)
def test_published_formats_are_known_by_their_names(
    lines: list[str], expected: list[TraceRequest]
) -> None:
    assert parse(lines) == expected


def test_what_has_no_times_gets_drawn_ones_the_same_for_a_seed() -> None:
    lines = ["num_prefill_tokens,num_decode_tokens"] + ["100,20"] * 500

    one, same, other = parse(lines, seed=1), parse(lines, seed=1), parse(lines, seed=2)

    assert one == same != other
    assert one[0].arrival_s == 0.0
    assert 400 < one[-1].arrival_s < 600
    assert {request[1:3] for request in one} == {(100, 20)}


def test_an_agents_calls_keep_their_session_and_blocks() -> None:
    line = (
        '{"session": "0-1", "turn": 0, "input_length": 128, "output_length": 23, "hash_ids": [7]}'
    )
    assert parse([line]) == [TraceRequest(0.0, 128, 23, "", "0-1", None, (7,), 64)]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "the trace is empty"),
        (["arrival_s,prompt_tokens,output_tokens"], "the trace has no requests"),
        (["a,b", "1,2"], r"line 2: no trace format has a, b \(known are plain: "),
        (
            ["arrival_s,prompt_tokens,output_tokens", "1,2"],
            "line 2: 2 fields, the header has 3",
        ),
        (
            ["arrival_s,prompt_tokens,output_tokens", "0,1,2", "", "x,1,2"],
            "line 4: 'x' is no number here",
        ),
        (
            ["arrival_s,prompt_tokens,output_tokens", "0,1,2.5"],
            "line 2: '2.5' is no number here",
        ),
        (
            ["arrival_s,prompt_tokens,output_tokens", "0,-1,2"],
            "line 2: times and token counts must be at least 0",
        ),
        (["{"], "line 1: is no JSON object: "),
        (
            [
                '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6}',
                '{"arrival_s": 0, "prompt_tokens": 5}',
            ],
            "line 2: 'output_tokens' is missing",
        ),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(lines: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(lines)


def test_the_format_is_named_by_the_first_line() -> None:
    assert format_of("req_id,client,req_time_s,prompt_len,output_len") == "vtc"
    assert format_of('{"arrival_s": 1, "prompt_tokens": 2, "output_tokens": 3}') == "plain"
    with pytest.raises(ValueError, match="no trace format has a"):
        format_of("a")


@pytest.mark.skipif(not DATA, reason="FOREBAY_DATA names no folder with the published traces")
def test_every_published_trace_is_read() -> None:
    for file in sorted((Path(DATA) / "traces").iterdir()):
        with gzip.open(file, "rt") as lines:
            requests = parse(lines)
        assert len(requests) > 1000, file.name
        assert requests[0].arrival_s == 0.0, file.name
