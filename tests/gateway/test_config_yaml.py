"""The YAML under a configuration: what plain words mean, `${NAME}`, and hostile files."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors
from forebay.gateway.config.sections import Timeouts

MINIMAL = """\
version: 1
pools:
  - name: main
    models: [m]
    endpoints:
      - {name: e, engine: sim}
"""


def errors(text: str, env: dict[str, str] | None = None) -> list[tuple[int, str, str]]:
    with pytest.raises(ConfigErrors) as caught:
        load.read(text, env or {})
    return [(each.line, each.path, each.message) for each in caught.value.errors]


def with_line(line: str) -> str:
    """The minimal file with a seventh line."""
    return MINIMAL + line + "\n"


def test_plain_words_mean_what_yaml_1_2_says():
    text = MINIMAL.replace("[m]", "[no, on, 1:30, 2024-01-01, 1_000, 0x1F]")
    assert list(load.read(text).pools[0].models) == [
        "no",
        "on",
        "1:30",
        "2024-01-01",
        "1_000",
        "0x1F",
    ]


def test_anchors_and_merge_keys_work():
    text = """\
version: 1
pools:
  - name: a
    models: [a]
    endpoints: [{name: a, engine: sim}]
    timeouts: &slow {connect: 5s, idle: 2m}
  - name: b
    models: [b]
    endpoints: [{name: b, engine: sim}]
    timeouts: {<<: *slow, idle: 3m}
"""
    assert load.read(text).pools[1].timeouts == Timeouts(connect=5, idle=180)


def test_the_environment_fills_values_quoted_or_not():
    text = with_line('server: {port: ${PORT}, admin: {key: ${KEY}}, host: "${A}.${B}"}')
    server = load.read(text, {"PORT": "9000", "KEY": "s3", "A": "1", "B": "2"}).server
    assert server.admin is not None
    assert server.admin.key is not None
    assert (server.port, server.host, server.admin.key.get_secret_value()) == (9000, "1.2", "s3")


def test_a_value_from_the_environment_cannot_change_the_structure():
    value = "x, admin: {host: evil}"
    assert load.read(with_line("server: {host: ${HOST}}"), {"HOST": value}).server.host == value
    assert (
        load.read(with_line("server: {host: ${A}}"), {"A": "${B}", "B": "x"}).server.host == "${B}"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${NOPE}", "environment variable NOPE is not set"),
        ("${no-name}", "'${no-name}' does not hold a variable's name"),
        ("${}", "'${}' does not hold a variable's name"),
        ("'${NOPE'", "has '${' without '}' or a name; write ${NAME}"),
    ],
)
def test_a_reference_that_cannot_be_filled_is_an_error(value: str, message: str):
    assert errors(with_line(f"server: {{host: {value}}}")) == [(7, "server.host", message)]


def test_a_variable_that_is_not_utf_8_is_an_error():
    message = "environment variable A is not UTF-8 text"
    assert errors(with_line("server: {host: ${A}}"), {"A": "x\udcff"}) == [
        (7, "server.host", message)
    ]


def test_a_reference_is_no_key():
    assert errors(with_line("${A}: 1"), {"A": "server"}) == [
        (7, "", "has a key that is not a plain name")
    ]


@pytest.mark.parametrize("secret", ["hunter2 !", "http://hunter2:x", "sha256:hunter2", "9hunter2"])
def test_values_from_the_environment_stay_out_of_messages_and_reprs(secret: str):
    keys = ["max_body", "max_header", "port", "metrics", "drain", "keep_alive", "admin"]
    text = with_line("server: {" + ", ".join(f"{key}: ${{S}}" for key in keys) + "}")
    text += "telemetry: {otlp: ${S}, sample: ${S}, log_level: ${S}, log_requests: ${S}}\n"
    text += "tenants: [{name: ${S}, keys: [${S}], models: [${S}]}, {name: ${S}, keys: [${S}]}]\n"
    text = text.replace("engine: sim", "engine: ${S}, url: ${S}, sim: {fault: ${S}}").replace(
        "[m]", "[${S}, ${S}]"
    )
    with pytest.raises(ConfigErrors) as caught:
        load.read(text, {"S": secret})
    assert len(caught.value.errors) > 14
    assert "hunter2" not in str(caught.value)
    admin = load.read(with_line("server: {admin: {key: ${S}}}"), {"S": "hunter2"}).server.admin
    assert "hunter2" not in repr(admin)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, "", "is empty")),
        ("# only a comment", (0, "", "is empty")),
        ("[]", (1, "", "must be a mapping")),
        ("version", (1, "", "must be a mapping")),
        (
            "a: [1\nb: 2",
            (2, "", "is no YAML: expected ',' or ']', but got ':'; look from line 1 on"),
        ),
        ("a: *b", (1, "", "is no YAML: found undefined alias 'b'")),
        ("a: 1\n--- \nb: 2", (2, "", "is no YAML: but found another document")),
        ("a: \x01", (1, "", "holds a character that YAML forbids")),
        ("a: \ue000", (0, "", "holds a private-use character (U+E000 or U+E001)")),
        ("a: &a [*a]", (1, "", "is nested too deeply, or its aliases grow too large")),
        ("[" * 800, (0, "", "is nested too deeply, or its aliases grow too large")),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(text: str, expected: tuple[int, str, str]):
    assert errors(text) == [expected]


def test_aliases_cannot_eat_the_memory():
    layers = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    layers += [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    [(_, path, message)] = errors("\n".join(layers))
    assert (path, message) == ("", "is nested too deeply, or its aliases grow too large")


def test_merge_keys_cannot_eat_the_memory():
    layers = ["- &a {x: 1}"]
    layers += [
        f"- &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    [(_, _, message)] = errors("\n".join(layers))
    assert message == "is nested too deeply, or its aliases grow too large"


def test_a_merge_key_that_holds_itself_is_refused():
    assert errors("a: &a\n  <<: *a")[0][2] == "is nested too deeply, or its aliases grow too large"


def test_half_a_character_is_refused():
    [(line, path, message)] = errors(MINIMAL.replace("[m]", '["\\ud800"]'))
    assert (line, path) == (4, "pools[0].models[0]")
    assert message == "holds half a character (a lone surrogate)"
    assert errors(with_line('"\\ud800": 1')) == [(7, "", "has a key that is not a plain name")]


def test_a_character_in_two_halves_is_one_as_in_json():
    config = load.read(MINIMAL.replace("[m]", '["\\ud83d\\ude00"]'))
    assert list(config.pools[0].models) == ["\U0001f600"]


KEYS = ["name", "pools", "models", "endpoints", "engine", "url", "keys", "tenants", "server", "x"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JUNK)
@settings(max_examples=150, deadline=None)
def test_any_yaml_is_a_config_or_config_errors(junk: object):
    try:
        load.read(json.dumps(junk), {})
    except ConfigErrors as refused:
        assert refused.errors  # noqa: PT017 - no junk is a whole configuration, but it might be


WHOLE = """\
version: 1
server: {host: h, port: 1, max_body: 1MiB, drain: {notice: 1s}, admin: {port: 2, key: k}}
pools:
  - name: p
    models: [a, {b: c}]
    engine_model: x
    endpoints:
      - {name: e, engine: vllm, url: http://h, key: k, max_in_flight: 1}
      - {name: s, engine: sim, sim: {seed: 1, profile: demo, fault: cut}}
    queue: {max_requests: 1k, max_bytes: 1MiB, deadline: 1s}
    retry: {budget: 10%}
    allow_fields: [priority]
tenants: [{name: t, keys: [k], models: [a], debug_headers: true}]
telemetry: {otlp: http://h, sample: 10%}
"""


PLACES = [
    found.span(1)
    for found in re.finditer(r"(?<=[\[ ])([^\s\[\]{},:]+(?:://h)?)(?=[,\]}\n])", WHOLE)
]


@given(st.sampled_from(PLACES), JUNK)
@settings(max_examples=150, deadline=None)
def test_junk_in_any_place_is_a_config_or_config_errors(place: tuple[int, int], junk: object):
    start, end = place
    try:
        load.read(WHOLE[:start] + json.dumps(junk) + WHOLE[end:], {})
    except ConfigErrors as refused:
        assert refused.errors  # noqa: PT017 - some junk is right


@given(st.text(alphabet="ab:{}[]*&!|>-?'\"%@`#,\n \t$<~0", max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_config_or_config_errors(text: str):
    with pytest.raises(ConfigErrors):
        load.read(text, {})
