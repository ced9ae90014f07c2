"""Experiments and fallbacks in the configuration: what is wrong, where, and what was meant."""

from __future__ import annotations

import pytest

from forebay.gateway.config import load
from forebay.gateway.config.experiments import read_hours

POOLS = """\
version: 1
pools:
  - name: p
    models: [m]
    endpoints: [{name: a, engine: sim}, {name: b, engine: sim}, {name: c, engine: sim}]
  - {name: q, models: [n], endpoints: [{name: d, engine: sim}]}
  - {name: r, models: [x, y], endpoints: [{name: e, engine: sim}]}
sla: {fast: {}}
experiments:
"""
GOOD = "name: t, pool: p, arms: {one: [a], two: [b]}"


def faults(*experiments: str) -> list[tuple[str, str]]:
    text = POOLS + "".join(f"  - {{{each}}}\n" for each in experiments)
    try:
        load.read(text)
    except load.ConfigErrors as errors:
        return [(fault.path.partition("experiments")[2], fault.message) for fault in errors.errors]
    return []


@pytest.mark.parametrize(
    ("experiment", "path", "message"),
    [
        ("name: t, pool: zz, arms: {o: [a], w: [b]}", "[0].pool", "there is no pool 'zz'"),
        (
            "name: t, pool: p, arms: {one: [a], two: [bb]}",
            "[0].arms.two[0]",
            "pool 'p' has no endpoint 'bb'; did you mean 'b'?",
        ),
        (
            "name: t, pool: p, arms: {one: [a, b], two: [b]}",
            "[0].arms.two[0]",
            "endpoint 'b' is in arm t/one too",
        ),
        (
            "name: t, pool: p, arms: {one: [a], two: {pool: s}}",
            "[0].arms.two.pool",
            "there is no pool 's'",
        ),
        (
            "name: t, pool: p, arms: {one: [a], two: {pool: r}}",
            "[0].arms.two.pool",
            "pool 'r' serves several models; one must be meant",
        ),
        (
            f"{GOOD}, split: {{one: 1, tow: 1}}",
            "[0].split.tow",
            "there is no arm 'tow'; did you mean 'two'?",
        ),
        (
            f"{GOOD}, shadow: {{arm: on}}",
            "[0].shadow.arm",
            "there is no arm 'on'; did you mean 'one'?",
        ),
        (
            f"{GOOD}, eligible: {{sla: [fas]}}",
            "[0].eligible.sla[0]",
            "there is no SLA class 'fas'; did you mean 'fast'?",
        ),
        (
            f"{GOOD}, eligible: {{models: [n]}}",
            "[0].eligible.models[0]",
            "the pool has no model 'n'",
        ),
        (
            f"{GOOD}, eligible: {{tenants: [n]}}",
            "[0].eligible.tenants[0]",
            "there is no tenant 'n'",
        ),
        (
            f"{GOOD}, eligible: {{hours: [8-30]}}",
            "[0].eligible.hours",
            "'8-30' is no span of hours such as 8-18",
        ),
        (f"{GOOD}, guardrails: {{ttfft: 5%}}", None, "did you mean 'ttft'?"),
        (
            f"{GOOD}, ramp: {{stages: [50%, 5%]}}",
            "[0].ramp.stages",
            "must rise from above 0 % to at most 100 %",
        ),
        (
            "name: t, pool: p, arms: {one: [a]}",
            "[0].arms",
            "needs a control and at least one candidate",
        ),
        (
            "name: t, pool: p, arms: {one: [a], two: {}}",
            "[0].arms.two",
            "needs a list of endpoints, or 'pool'",
        ),
        (
            f"{GOOD}, ramp: {{}}, split: {{one: 1, two: 1}}",
            "[0].split.one",
            "of the control is what 'ramp' leaves; leave it out",
        ),
    ],
)
def test_what_is_wrong_is_named(experiment: str, path: str | None, message: str | None):
    found = faults(experiment)
    assert len(found) == 1, found
    ((where, what),) = found
    assert path is None or where == path
    assert message is None or message in what


def test_right_ones_are_right():
    assert (
        faults(
            GOOD,
            "name: u, pool: p, arms: {one: [a], three: [c]}, ramp: {}, sticky: tenant",
            "name: v, pool: q, arms: {now: {pool: q}, then: {pool: p}}, guardrails: {tpot: off}",
        )
        == []
    )


def test_names_and_candidates_stand_once():
    assert faults(GOOD, "name: t, pool: q, arms: {x: [d], y: {pool: p}}") == [
        ("[1].name", "the experiment 't' stands twice")
    ]
    assert faults(GOOD, "name: u, pool: p, arms: {one: [a], two: [b]}") == [
        ("[1].arms.two[0]", "endpoint 'b' is in arm t/two too")
    ]


def test_a_group_is_sticky_by_one_thing():
    other = "name: u, pool: q, arms: {x: [d], y: {pool: p}}, group: g, sticky: tenant"
    assert faults(f"{GOOD}, group: g", other) == [
        ("[1].sticky", "all of group 'g' must be sticky by the same")
    ]


@pytest.mark.parametrize(
    ("fallback", "message"),
    [
        ("{pool: p}", "is the pool itself"),
        ("{pool: pp}", "there is no pool 'pp'; did you mean 'p'?"),
        ("{pool: r}", "pool 'r' serves several models; one must be meant"),
        ("{pool: q}, {pool: q}", "pool 'q' stands twice"),
    ],
)
def test_a_fallback_is_another_pool_of_one_model(fallback: str, message: str):
    text = POOLS.replace("models: [m]", f"models: [m]\n    fallback: [{fallback}]")
    with pytest.raises(load.ConfigErrors) as caught:
        load.read(text.replace("experiments:\n", ""))
    (fault,) = caught.value.errors
    assert fault.message == message


def test_hours_may_pass_midnight():
    assert read_hours("22-2") == {22, 23, 0, 1}
    assert read_hours("8-10") == {8, 9}
    assert len(read_hours("0-24")) == 24
