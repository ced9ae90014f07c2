import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.adapters.metrics_text import read_highest, read_share, read_total, read_values

ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

TEXT = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="a } brace, a \\" quote"} 4.0 1700000000000
vllm:num_requests_running_total{engine="0"} 99
not_vllm:num_requests_running 98
process_start_time_seconds 1.79597943657e+09
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:nothing{engine="0"} NaN
vllm:endless +Inf
vllm:cut{engine="0
vllm:bare"""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (b"vllm:num_requests_running", [3.0, 4.0]),
        (b"vllm:num_requests_running_total", [99.0]),
        (b"process_start_time_seconds", [1795979436.57]),
        (b"vllm:nothing", []),
        (b"vllm:endless", []),
        (b"vllm:cut", []),
        (b"vllm:bare", []),
        (b"vllm:absent", []),
    ],
)
def test_the_values_of_a_name_and_no_other_are_read(name: bytes, values: list[float]):
    assert read_values(TEXT, name) == values


def test_a_name_at_the_very_beginning_is_read():
    assert read_values(b"up 1\n", b"up") == [1.0]


def test_ranks_are_summed_and_an_absent_gauge_is_unknown():
    assert read_total(TEXT, b"vllm:num_requests_running") == 7
    assert read_total(TEXT, b"vllm:absent") is None


def test_the_first_name_that_is_there_counts():
    assert read_highest(TEXT, b"vllm:absent", b"vllm:kv_cache_usage_perc") == 0.5
    assert read_highest(TEXT, b"vllm:absent") is None


def test_a_share_stays_within_its_bounds():
    assert read_share(b"use 1.5\n", b"use") == 1.0
    assert read_share(b"use -1\n", b"use") == 0.0
    assert read_share(b"", b"use") is None


@settings(deadline=None)
@given(text=st.binary(), name=st.sampled_from([b"a", b"up", b"vllm:x"]))
def test_no_text_makes_the_reader_raise(text: bytes, name: bytes):
    values = read_values(text + b"\n" + name + b'{x="' + text, name)

    assert all(math.isfinite(value) for value in values)


@settings(deadline=None)
@given(
    labels=st.dictionaries(st.sampled_from(["a", "b"]), st.text(), min_size=1),
    value=st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_label_value_is_passed_over(labels: dict[str, str], value: float):
    escaped = ",".join(f'{name}="{text.translate(ESCAPES)}"' for name, text in labels.items())

    assert read_values(f"x{{{escaped}}} {value!r}\n".encode(), b"x") == [value]
