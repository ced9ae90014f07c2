"""`forebay check`: what stops `serve`, and what does nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forebay.gateway.cli import main
from forebay.gateway.config import load
from forebay.gateway.config.errors import path_of
from forebay.gateway.config.idle import find_idle
from forebay.gateway.extras import is_there, needs
from forebay.gateway.keys import digest_of
from forebay.gateway.needs import find_missing

EXAMPLES = Path(__file__).parents[2] / "examples"
NOW = 1_800_000_000.0
"""In January 2027."""


def file_of(pool: str = "", rest: str = "", endpoint: str = "") -> str:
    """Write a configuration of one pool with more members, each on a line of its own."""
    return (
        "version: 1\n"
        "pools:\n"
        "  - name: p\n"
        "    models: [m]\n"
        f"    endpoints: [{{name: a, engine: vllm, url: 'http://a'{endpoint}}}]\n"
        f"    {pool}\n"
        f"{rest}\n"
    )


def idle(text: str) -> list[tuple[str, str]]:
    """Return what a configuration is warned of."""
    return [(path_of(place), why) for place, why in find_idle(load.read(text, {}), NOW)]


def tenants(*keys: str) -> str:
    return f"tenants: [{{name: t, keys: [{', '.join(keys)}]}}]"


KEY = f"'{digest_of('fb_x')}'"


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        (
            file_of("speculation: {max_batch: 8}"),
            "pools[0].speculation",
            "does nothing: no endpoint of the pool has 'speculative'",
        ),
        (
            file_of("order: fcfs\n    scheduling: {predictor: encoder}"),
            "pools[0].scheduling.predictor",
            "orders nothing: order 'fcfs' looks at no predicted length, 'ml' does",
        ),
        (
            file_of("scheduling: {predictor: mean, prediction: {budget: 5ms}}"),
            "pools[0].scheduling.prediction",
            "does nothing: predictor 'mean' reads no prompts",
        ),
        (
            file_of("scheduling: {predictor: 'http://p:1', prediction: {weights: x}}"),
            "pools[0].scheduling.prediction.weights",
            "does nothing: the predictor at the URL has its own",
        ),
        (
            file_of("scheduling: {window: {ttft: 1s}}"),
            "pools[0].scheduling.window",
            "does nothing: no endpoint of the pool has 'max_in_flight: auto'",
        ),
        (
            file_of(endpoint=", events: 'tcp://a:5557'"),
            "pools[0].endpoints[0].events",
            "does nothing: the pool has no 'prefix'",
        ),
        (
            file_of("prefix: {mode: 'off', block_tokens: 32}"),
            "pools[0].prefix",
            "does nothing but say so: its mode is 'off'",
        ),
        (
            file_of("prefix: {weights: {hit: 3}}"),
            "pools[0].prefix.weights",
            "does nothing: it is of policy 'weighted', not 'sticky_until_saturated'",
        ),
        (
            file_of("prefix: {policy: least_load, stickiness: 3}"),
            "pools[0].prefix.stickiness",
            "does nothing: it is of policy 'sticky_until_saturated', not 'least_load'",
        ),
        (
            file_of("prefix: {tokenize_budget: 50ms}"),
            "pools[0].prefix.tokenize_budget",
            "does nothing without 'tokenizer'",
        ),
        (
            file_of("prefix: {mode: learned, tokenizer: engine}"),
            "pools[0].prefix.tokenizer",
            "does nothing: mode 'learned' goes by the text",
        ),
        (
            file_of("prefix: {tokenizer: engine}"),
            "pools[0].prefix.tokenizer",
            "does nothing: no endpoint of the pool has 'events'",
        ),
        (
            file_of(
                "fallback: [{pool: q}]\n"
                "  - {name: q, models: [n], endpoints: [{name: b, engine: sim}]}",
                tenants(KEY),
            ),
            "pools[0].fallback",
            "does nothing: no tenant has 'fallback: true'",
        ),
        (
            file_of(rest=tenants(f"{{digest: {KEY}, expires: 2027-01-01}}")),
            "tenants[0].keys[0].expires",
            "lets nobody in: it was over at 2027-01-01 00:00 UTC",
        ),
        (
            file_of(rest="plans: {gold: {weight: 2}}"),
            "plans.gold",
            "does nothing: no tenant has this plan",
        ),
        (file_of(rest="tenants: []"), "tenants", "is empty: nobody needs a key"),
        (file_of(rest="state: {timeout: 1s}"), "state.timeout", "does nothing without 'url'"),
        (
            file_of(rest="state: {url: 'redis://r', ledger: usage.db}"),
            "state.ledger",
            "does nothing: what it is for is kept at 'url'",
        ),
        (
            file_of(rest="state: {url: 'redis://r', experiments: folder}"),
            "state.experiments",
            "does nothing: what it is for is kept at 'url'",
        ),
        (
            file_of(rest="telemetry: {sample: 10%}"),
            "telemetry.sample",
            "does nothing without 'otlp'",
        ),
        (
            file_of(rest="server: {admin: {host: 0.0.0.0}}"),
            "server.admin.host",
            "lets nobody in from elsewhere: there is no 'key'",
        ),
    ],
)
def test_a_key_that_does_nothing_is_warned_of(text: str, path: str, why: str):
    assert idle(text) == [(path, why)]


EXPERIMENT = """\
version: 1
pools: [{name: p, models: [m], endpoints: [{name: a, engine: sim}, {name: b, engine: sim}]}]
experiments: [{name: x, pool: p, arms: {old: [a], new: [b]}, %s}]
"""


@pytest.mark.parametrize(
    ("members", "path", "why"),
    [
        (
            "split: {new: 5}",
            "experiments[0].split",
            "leaves arm 'old' without requests; say 0 if that is meant",
        ),
        (
            "promote: better",
            "experiments[0].promote",
            "does nothing: without 'ramp' nothing is promoted",
        ),
        (
            "ramp: {}, margin: 3%",
            "experiments[0].margin",
            "does nothing: it is of 'promote: not_worse'",
        ),
    ],
)
def test_what_does_nothing_in_an_experiment_is_warned_of(members: str, path: str, why: str):
    assert idle(EXPERIMENT % members) == [(path, why)]


@pytest.mark.parametrize(
    "text",
    [
        EXPERIMENT % "split: {old: 0, new: 1}",
        file_of(rest="server: {admin: {host: localhost}}"),
        file_of(rest="server: {admin: {host: 0.0.0.0, key: canarycanarycanary}}"),
        EXPERIMENT % "ramp: {}, split: {new: 1}, promote: not_worse, margin: 3%",
        file_of("speculation: {}", endpoint=", speculative: ngram"),
        file_of("scheduling: {window: {}}", endpoint=", max_in_flight: auto"),
        file_of("scheduling: {predictor: linear, prediction: {weights: x}}"),
        file_of("prefix: {tokenizer: engine}", endpoint=", events: 'tcp://a:5557'"),
        file_of("prefix: {policy: weighted, weights: {hit: 3}}"),
        file_of(rest=tenants(f"{{digest: {KEY}, expires: 2099-01-01}}")),
    ],
)
def test_a_key_that_does_something_is_not_warned_of(text: str):
    assert idle(text) == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_no_example_is_warned_of(file: Path):
    env = {
        "FOREBAY_ADMIN_KEY": "a" * 20,
        "FOREBAY_SECRET": "b" * 40,
        "SGLANG_KEY": "c" * 20,
        "REDIS_PASSWORD": "d",
    }
    assert find_idle(load.read(file, env), NOW) == []


@pytest.mark.parametrize(
    ("pool", "rest", "path", "why"),
    [
        (
            "prefix: {tokenizer: /nowhere}",
            "",
            "pools[0].prefix.tokenizer",
            "there is no tokenizer at '/nowhere/tokenizer.json'",
        ),
        (
            "scheduling: {predictor: encoder, prediction: {weights: /nowhere}}",
            "",
            "pools[0].scheduling.prediction.weights",
            "no weights in '/nowhere': no such file or directory",
        ),
        (
            "scheduling: {predictor: 'http://p:1', prediction: {challenger: /nowhere}}",
            "",
            "pools[0].scheduling.prediction.challenger",
            "no weights in '/nowhere': no such file or directory",
        ),
        (
            "scheduling: {predictor: linear, prediction: {outcomes: /nowhere/log.jsonl}}",
            "",
            "pools[0].scheduling.prediction.outcomes",
            "there is no folder '/nowhere' for it; make it, or name another file",
        ),
        (
            "scheduling: {journal: /nowhere/journal}",
            "",
            "pools[0].scheduling.journal",
            "there is no folder '/nowhere' for it; make it, or name another file",
        ),
        (
            "",
            "state: {ledger: /nowhere/usage.db}",
            "state.ledger",
            "there is no folder '/nowhere' for it; make it, or name another file",
        ),
        ("", "state: {ledger: /}", "state.ledger", "'/' is a folder; name a file"),
    ],
)
def test_what_serve_would_stop_for_is_found(
    tmp_path: Path, pool: str, rest: str, path: str, why: str
):
    found = find_missing(load.read(file_of(pool, rest), {}), tmp_path / "forebay.yaml")
    assert [(path_of(place), said) for place, said in found] == [(path, why)]


def test_what_is_there_is_not_missed(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    pool = (
        f"prefix: {{tokenizer: {tmp_path}}}\n"
        f"    scheduling: {{predictor: encoder, prediction: {{outcomes: {tmp_path}/log}}}}"
    )
    config = load.read(file_of(pool, "state: {ledger: usage.db}"), {})
    assert find_missing(config, tmp_path / "forebay.yaml") == []


def test_an_extra_is_there_when_all_it_brings_is():
    assert is_there("tokenizer")
    assert not is_there("some", {"some": ("jinja2", "no_such_module_anywhere")})
    told = "x needs the extra 'oidc'; in forebay's checkout: pip install '.[oidc]'"
    assert needs("x", "oidc") == told


def test_check_prints_errors_and_warnings_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "forebay.yaml"
    pool = "prefix: {tokenizer: /nowhere, tokenize_budget: 1s}\n    speculation: {}"
    file.write_text(file_of(pool))

    assert main(["check", str(file)]) == 1
    why = "there is no tokenizer at '/nowhere/tokenizer.json'"
    assert capsys.readouterr().out == f"{file}:6: pools[0].prefix.tokenizer: {why}\n"

    assert main(["check", str(file), "--elsewhere"]) == 0
    assert capsys.readouterr().out == (
        f"{file}:6: warning: pools[0].prefix.tokenizer: does nothing: no endpoint of the pool has "
        "'events'\n"
        f"{file}:7: warning: pools[0].speculation: does nothing: no endpoint of the pool has "
        "'speculative'\n"
        f"{file}: ok (pools: 1, endpoints: 1, tenants: 0, warnings: 2)\n"
    )

    assert main(["check", str(file), "--elsewhere", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["errors"]) == (True, [])
    assert told["warnings"][1] == {
        "line": 7,
        "path": "pools[0].speculation",
        "message": "does nothing: no endpoint of the pool has 'speculative'",
    }


@pytest.mark.parametrize("place", ["docs", "gateway", "kernels", "README.md", "CONTRIBUTING.md"])
def test_nothing_says_that_forebay_is_on_an_index(place: str):
    root = EXAMPLES.parent / place
    files = [root] if root.is_file() else [*root.rglob("*.md"), *root.rglob("*.py")]
    texts = {file: file.read_text("utf-8") for file in files}
    for words in ("forebay[", "install forebay", "--no-deps forebay"):
        assert [str(file) for file, text in texts.items() if words in text] == []


def test_folders_that_may_not_be_looked_into_are_told_with_their_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shut, file = tmp_path / "shut", tmp_path / "forebay.yaml"
    shut.mkdir(mode=0)
    if os.access(shut, os.X_OK):
        pytest.skip("this user may look into every folder")
    own = f"{{predictor: 'http://a', prediction: {{outcomes: {shut}/x}}}}"
    file.write_text(
        file_of(f"scheduling: {own}", f"    prefix: {{tokenizer: {shut}}}\n    order: ml")
    )
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr().out == (
        f"{file}:6: pools[0].scheduling.prediction.outcomes: '{shut}' cannot be written by "
        "this user; allow it, or name another file\n"
        f"{file}:7: pools[0].prefix.tokenizer: the tokenizer in '{shut}' cannot be read: "
        "permission denied\n"
    )
