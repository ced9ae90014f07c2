"""W3C trace context, sampling, and the spans that a request leaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.telemetry.traces import (
    UNTRACED,
    PassOn,
    RequestTrace,
    Sampler,
    TraceContext,
    parse_traceparent,
)

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331
SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-1] + b"0"

GARBAGE = (
    b"",
    b"garbage",
    SAMPLED.upper(),
    SAMPLED + b"-extra",
    b"ff" + SAMPLED[2:],
    SAMPLED[:-1],
    SAMPLED + b"\n",
    b" " + SAMPLED,
    b"00-" + b"0" * 32 + SAMPLED[35:],
    SAMPLED[:36] + b"0" * 16 + b"-01",
    SAMPLED.replace(b"-", b"_"),
    b"01" + SAMPLED[2:] + b"-\r\nx-evil: 1",
    b"01" + SAMPLED[2:] + b"-" + b"x" * 300,
    b"\xff" * 55,
)  # fmt: skip


def test_a_traceparent_is_read():
    assert parse_traceparent(SAMPLED) == TraceContext(TRACE_ID, SPAN_ID, 0, sampled=True)
    assert parse_traceparent(UNSAMPLED) == TraceContext(TRACE_ID, SPAN_ID, 0, sampled=False)


def test_unknown_flags_and_later_versions_are_read_by_what_is_known():
    later = b"cc" + SAMPLED[2:-2] + b"ff-what-comes-later"
    assert parse_traceparent(later) == TraceContext(TRACE_ID, SPAN_ID, 0, sampled=True)


@pytest.mark.parametrize("header", GARBAGE)
def test_garbage_is_no_trace(header: bytes):
    assert parse_traceparent(header) is None
    assert PassOn().begin(header) == UNTRACED
    assert Sampler(0.0).begin(header) == UNTRACED
    started = Sampler(1.0, rng=Random(1)).begin(header)
    assert started == Sampler(1.0, rng=Random(1)).begin(None)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_can_be_read(trace_id: int, span_id: int, sampled: bool):  # noqa: FBT001 - hypothesis passes it
    context = TraceContext(trace_id, span_id, 0, sampled)
    assert parse_traceparent(context.traceparent.encode()) == context


@given(st.binary(max_size=80))
def test_no_header_breaks_the_reader(header: bytes):
    parse_traceparent(header)


def test_a_child_hangs_below_its_parent():
    parent = TraceContext(TRACE_ID, SPAN_ID, 0, sampled=True)
    child = parent.child(Random(1))
    assert (child.trace_id, child.parent_id, child.sampled) == (TRACE_ID, SPAN_ID, True)
    assert child.span_id not in {0, SPAN_ID}


def test_a_sampled_caller_is_traced_whatever_the_share():
    trace = Sampler(0.0).begin(SAMPLED)
    assert trace.request is not None
    assert trace.engine is not None
    assert (trace.request.trace_id, trace.request.parent_id) == (TRACE_ID, SPAN_ID)
    assert (trace.engine.trace_id, trace.engine.parent_id) == (TRACE_ID, trace.request.span_id)


def test_the_engine_gets_the_id_of_our_call_to_it():
    trace = Sampler(1.0).begin(None)
    assert trace.engine is not None
    assert trace.traceparent == trace.engine.traceparent
    assert trace.traceparent.endswith(f"-{trace.engine.span_id:016x}-01")


def test_an_unsampled_caller_is_not_traced_and_its_context_goes_on():
    assert Sampler(1.0).begin(UNSAMPLED) == RequestTrace(UNSAMPLED.decode())


def test_without_tracing_a_valid_context_goes_on_as_it_came():
    assert PassOn().begin(SAMPLED) == RequestTrace(SAMPLED.decode())
    assert PassOn().begin(None) == UNTRACED


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_requests_is_traced(share: float):
    sampler = Sampler(share, rng=Random(7))
    traced = sum(sampler.begin(None).request is not None for _ in range(4000))
    assert abs(traced / 4000 - share) < 0.03


def test_ids_are_distinct():
    sampler = Sampler(1.0)
    ids = {trace.traceparent for trace in (sampler.begin(None) for _ in range(1000))}
    assert len(ids) == 1000
