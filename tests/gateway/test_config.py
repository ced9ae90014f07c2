from pathlib import Path
from typing import Any, get_args

import pytest

from forebay.adapters.sim_job import FAULTS
from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors, Fault
from forebay.gateway.config.load import first_errors
from forebay.gateway.config.scheduling import Order
from forebay.gateway.config.sections import Config, Drain, Endpoint, Pool, Timeouts
from forebay.gateway.config.suggest import nearest
from forebay.gateway.keys import digest_of
from forebay.policies.registry import ORDERINGS

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


def test_the_smallest_file_gets_every_default():
    endpoint = Endpoint(name="e", engine="sim")
    pool = Pool(name="main", models={"m": "m"}, endpoints=(endpoint,))
    assert load.read(MINIMAL, {}) == Config(version=1, pools=(pool,))


def test_a_path_is_a_file_and_a_str_or_bytes_is_its_content(tmp_path: Path):
    file = tmp_path / "forebay.yaml"
    file.write_text(MINIMAL, encoding="utf-8-sig")
    assert load.read(file) == load.read(MINIMAL) == load.read(file.read_bytes())


def test_units_become_numbers():
    config = load.read(with_line("server: {max_body: 1MiB, drain: {notice: 500ms, limit: 2m}}"))
    assert (config.server.max_body, config.server.drain) == (1 << 20, Drain(notice=0.5, limit=120))


def test_python_code_gives_durations_in_seconds():
    assert Timeouts(connect=0.25).connect == 0.25
    assert Timeouts.model_validate({"connect": "250ms"}).connect == 0.25


def test_names_of_models_map_to_the_engines_names():
    text = MINIMAL.replace("[m]", "[a, {b: engine-b}, c]")
    assert load.read(text).pools[0].models == {"a": "a", "b": "engine-b", "c": "c"}
    text = text.replace("    models", "    engine_model: e/x\n    models")
    assert load.read(text).pools[0].models == {"a": "e/x", "b": "engine-b", "c": "e/x"}
    text = MINIMAL.replace("[m]", "{a: x, b: y}")
    assert load.read(text).pools[0].models == {"a": "x", "b": "y"}


@pytest.mark.parametrize(
    ("models", "place", "message"),
    [
        ("m", "", "must be a list of names and {caller's name: engine's name} maps"),
        ("[[m]]", "", "must be a list of names and {caller's name: engine's name} maps"),
        ("[1]", "", "must be a list of names and {caller's name: engine's name} maps"),
        ("[{}]", "", "must be a list of names and {caller's name: engine's name} maps"),
        ("[]", "", "needs at least one entry"),
        ("[{a: 1}]", ".a", "must be a text; put it in quotes"),
        ("[{a: }]", "[0].a", "has no value; give it one, or leave the key out"),
        ("['']", "", "must have at least 1 character"),
    ],
)
def test_models_must_be_names_or_maps(models: str, place: str, message: str):
    told = errors(MINIMAL.replace("[m]", models))
    assert (4, f"pools[0].models{place}", message) in told


def test_a_list_that_is_too_short_is_told_unless_its_entries_are_why():
    short: Any = {"type": "too_short", "loc": ("arms",), "input": ["one"], "msg": "", "url": ""}
    entry: Any = {"type": "missing", "loc": ("arms", 0), "input": {}, "msg": "", "url": ""}
    assert first_errors([short], ()) == [short]
    assert first_errors([short, entry], ()) == [entry]


def test_all_errors_are_told_at_once():
    text = """\
version: 2
server: {prot: 1, max_body: 32Mib, drain: {notice: 5}, admin: {port: true, key: ${NOPE}}}
state: {url: http://localhost}
pools:
  - name: llama
    name: x
    models: [llama-3-8b, {llama-3-8b: other}]
    order: mll
    endpoints:
      - {name: vllm-0, engine: vlm, url: ftp://10.0.0.1:8000/, max_in_flight: 0}
      - {name: vllm-0, engine: vllm}
tenants:
  - {name: acme, limits: {models: [lama-3-8b]}, keys: ["sha256:aab2"], priority: 1}
telemetry: {otlp: , sample: 1000%, log_requests: maybe}
"""
    sizes = "B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
    engines = "vllm, sglang, trtllm, llamacpp, openai, sim"
    assert errors(text) == [
        (1, "version", "'2' is not one of 1"),
        (2, "server.admin.key", "environment variable NOPE is not set"),
        (2, "server.admin.port", "must not be true or false"),
        (2, "server.drain.notice", "'5' has no unit; write one of ms, s, m, h, d after it"),
        (2, "server.max_body", f"'Mib' in '32Mib' is no unit here; use one of {sizes}"),
        (2, "server.prot", "is no known key; did you mean 'port'?"),
        (
            3,
            "state.url",
            (
                "must be an address such as redis://localhost:6379/0 "
                "(redis, rediss, redis+sentinel, redis+cluster, unix)"
            ),
        ),
        (6, "pools[0].name", "stands twice, first in line 5"),
        (
            7,
            "pools[0].models[1]",
            "the model 'llama-3-8b' stands twice, first at pools[0].models[0]",
        ),
        (
            8,
            "pools[0].order",
            f"'mll' is not one of {', '.join(get_args(Order))}; did you mean 'ml'?",
        ),
        (
            10,
            "pools[0].endpoints[0].engine",
            f"'vlm' is not one of {engines}; did you mean 'vllm'?",
        ),
        (10, "pools[0].endpoints[0].max_in_flight", "must be 1 or more, or 'auto'"),
        (10, "pools[0].endpoints[0].url", "must be an address such as http://10.0.0.1:8000"),
        (
            11,
            "pools[0].endpoints[1].name",
            "the name 'vllm-0' stands twice, first at pools[0].endpoints[0].name",
        ),
        (11, "pools[0].endpoints[1].url", "is missing; only 'engine: sim' can do without"),
        (13, "tenants[0].keys[0]", "has 4 digits after 'sha256:', not 64; paste the whole line"),
        (
            13,
            "tenants[0].limits.models[0]",
            "no pool has the model 'lama-3-8b'; did you mean 'llama-3-8b'?",
        ),
        (13, "tenants[0].priority", "is not in this version"),
        (14, "telemetry.log_requests", "must be true or false"),
        (14, "telemetry.otlp", "has no value; give it one, or leave the key out"),
        (
            14,
            "telemetry.sample",
            "must be less than or equal to 1; ten percent is 10% or 0.1",
        ),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: no such file or directory"), (b"\xff", "is not UTF-8 text")],
)
def test_a_file_that_cannot_be_read_is_a_config_error(
    tmp_path: Path, content: bytes | None, message: str
):
    file = tmp_path / "x.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigErrors) as caught:
        load.read(file)
    assert caught.value.errors == (Fault(0, "", message),)


@pytest.mark.parametrize(
    ("line", "path", "message"),
    [
        ("server:", "server", "has no value; give it one, or leave the key out"),
        ("tenants:", "tenants", "has no value; give it one, or leave the key out"),
        ("server: 5", "server", "must be a mapping"),
        ("server: {host: 5}", "server.host", "must be a text; put it in quotes"),
        ("server: {port: x}", "server.port", "must be a whole number"),
        ("server: {port: 1.5}", "server.port", "must be a whole number"),
        ("server: {port: 70000}", "server.port", "must be less than or equal to 65535"),
        ("server: {port: [1]}", "server.port", "must be a whole number"),
        ("server: {host: !x y}", "server.host", "has a YAML tag that has no meaning here"),
        (
            "server: {metrics: admin}",
            "server.metrics",
            "is 'admin', but there is no 'admin' section",
        ),
        ("server: {admin: {port: 8080}}", "server.admin.port", "is the port of the server itself"),
        ("server: {admin: {key: ''}}", "server.admin.key", "is empty"),
        ("server: {workers: 2}", "server.workers", "is not in this version"),
        ("tenants: {}", "tenants", "must be a list"),
        (
            "telemetry: {otlp: localhost}",
            "telemetry.otlp",
            "must be an address such as http://10.0.0.1:8000",
        ),
        ("<<: 5", "", "'<<' takes a mapping or a list of them"),
        ("? [a]\n: 1", "", "has a key that is not a plain name"),
        ("profiles: {}", "profiles", "is not in this version"),
        ("predictor: {}", "predictor", "is not in this version"),
        ("telemtry: {}", "telemtry", "is no known key; did you mean 'telemetry'?"),
        ("zzz: {}", "zzz", "is no known key"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(line: str, path: str, message: str):
    assert errors(with_line(line)) == [(7, path, message)]


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ("engine: sim", ".name", "is missing"),
        (
            "name: e/1, engine: sim",
            ".name",
            "must be 1 to 63 letters, digits, '.', '_' or '-', the first a letter or a digit",
        ),
        ("name: 1, engine: sim", ".name", "must be a text; put it in quotes"),
        (
            "name: e, engine: vllm, url: http://h, sim: {seed: 1}",
            ".sim",
            "is for an embedded engine: 'engine: sim' without a url",
        ),
        (
            "name: e, engine: openai, url: 'http://h', events: 'tcp://h:1'",
            ".events",
            "is only for vllm, sglang, trtllm, and sim with a url",
        ),
        (
            "name: e, engine: trtllm, url: 'http://h', events: 'tcp://h:1'",
            ".events",
            "must be 'poll', or {poll: TIME}: trtllm has to be asked",
        ),
        (
            "name: e, engine: vllm, url: 'http://h', events: poll",
            ".events",
            "must be an address: vllm publishes, only trtllm has to be asked",
        ),
        (
            "name: e, engine: vllm, url: 'http://h', events: {bind: true}",
            ".events",
            "lacks an 'address'",
        ),
        (
            "name: e, engine: sim, sim: {fault: sulk}",
            ".sim.fault",
            f"no fault 'sulk': take one of {', '.join(FAULTS)}",
        ),
        (
            "name: e, engine: sim, sim: {fault: 'cut:2'}",
            ".sim.fault",
            "fault 'cut:2': the share after the colon must be a number from 0 to 1",
        ),
        (
            "name: e, engine: sim, sim: {profile: '${S}'}",
            ".sim.profile",
            "the value from the environment is no profile",
        ),
        ("name: e, engine: sim, role: decode", ".role", "is not in this version"),
        (
            "name: e, engine: sim, max_inflight: 1",
            ".max_inflight",
            "is no known key; did you mean 'max_in_flight'?",
        ),
        (
            "name: e, engine: openai, url: 'http://h', key: 'a b'",
            ".key",
            "must be visible ASCII characters without spaces or line ends",
        ),
    ],
)
def test_a_wrong_endpoint_is_named(entry: str, key: str, message: str):
    text = MINIMAL.replace("name: e, engine: sim", entry)
    assert errors(text, {"S": "hunter2"}) == [(6, f"pools[0].endpoints[0]{key}", message)]


@pytest.mark.parametrize("told", ["poll", "{poll: 1s}"])
def test_trtllm_is_asked_for_its_events_where_tenants_share_prefixes(told: str):
    polled = MINIMAL.replace("engine: sim", f"engine: trtllm, url: http://h, events: {told}")
    tenants = f"tenants: [{{name: a, keys: ['{digest_of('fb_x')}']}}]\n"
    shared = load.read(polled + "    prefix: {shared: true}\n" + tenants, {})
    assert shared.pools == load.read(polled + "    prefix: {shared: true}\n", {}).pools
    message = (
        "cannot be used: trtllm's name no tenant's salt; set the pool's prefix to"
        " 'shared: true', or leave them out"
    )
    assert errors(polled + tenants) == [(6, "pools[0].endpoints[0].events", message)]


def test_a_field_to_allow_must_be_one_that_is_taken_out():
    vllm = MINIMAL.replace("engine: sim", "engine: vllm, url: http://h")
    assert load.read(vllm + "    allow_fields: [priority]\n").pools[0].allow_fields == ("priority",)
    message = "'prioriti' is no control field of this pool's engines; did you mean 'priority'?"
    assert errors(vllm + "    allow_fields: [prioriti]\n") == [
        (7, "pools[0].allow_fields[0]", message)
    ]


@pytest.mark.parametrize("key", ["isolation", "sla"])
def test_a_pools_later_keys_are_refused(key: str):
    assert errors(with_line(f"    {key}: {{}}")) == [
        (7, f"pools[0].{key}", "is not in this version")
    ]


@pytest.mark.parametrize("predictor", ["none", "mean", "linear", "encoder", "http://10.0.0.9/p"])
def test_every_predictor_may_be_named_or_is_a_url(predictor: str):
    config = load.read(with_line(f"    scheduling: {{predictor: {predictor!r}}}"), {})
    assert config.pools[0].scheduling.predictor == predictor


@pytest.mark.parametrize(
    ("predictor", "hint"),
    [
        ("best", ""),
        ("ftp://x", ""),
        ("http://", ""),
        (3, ""),
        ("encodr", "; did you mean 'encoder'?"),
    ],
)
def test_other_predictors_are_refused(predictor: object, hint: str):
    known = "encoder, linear, mean, none, nor the URL of a predictor"
    message = f"'{predictor}' is not one of {known}{hint}"
    found = errors(with_line(f"    scheduling: {{predictor: {predictor!r}}}"))
    assert found == [(7, "pools[0].scheduling.predictor", message)]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (
            "http://user:hunter2@p/x",
            "must not hold credentials; an engine's key stands under 'key'",
        ),
        ("http://p/x?key=hunter2", "must not have a query or a fragment"),
        ("http://p:99999/", "'http://p:99999/' is no address: wrong host or port"),
        ("http://[::1", "'http://[::1' is no address: wrong host or port"),
        ("http://p /x", "must be an address of visible ASCII characters"),
    ],
)
def test_a_predictors_url_is_an_address_without_secrets(url: str, why: str):
    found = errors(with_line(f"    scheduling: {{predictor: {url!r}}}"))
    assert found == [(7, "pools[0].scheduling.predictor", why)]


def test_no_two_pools_write_to_one_file():
    own = "{journal: j, predictor: linear, prediction: {outcomes: o}}"
    other = (
        f"  - {{name: two, models: [n], endpoints: [{{name: f, engine: sim}}], scheduling: {own}}}"
    )
    found = errors(with_line(f"    scheduling: {own}\n{other}"))
    where = "stands twice, first at pools[0].scheduling"
    assert found == [
        (8, "pools[1].scheduling.journal", f"the file 'j' {where}.journal"),
        (
            8,
            "pools[1].scheduling.prediction.outcomes",
            f"the file 'o' {where}.prediction.outcomes",
        ),
    ]


def test_a_predictor_from_the_environment_is_not_repeated():
    text = with_line("    scheduling: {predictor: '${SECRET}'}")
    with pytest.raises(load.ConfigErrors) as caught:
        load.read(text, {"SECRET": "encodr"})
    assert "encodr" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "policy"),
    [
        ("sticky", "sticky_until_saturated"),
        ("stiky", "sticky_until_saturated"),
        ("load", "least_load"),
        ("ring", "hash_ring"),
        ("least-load", "least_load"),
    ],
)
def test_a_part_of_a_policys_name_is_enough_to_find_it(word: str, policy: str):
    ((_, _, message),) = errors(with_line(f"    prefix: {{policy: {word}}}"))
    assert message.endswith(f"; did you mean '{policy}'?")


def test_a_part_that_several_names_have_finds_none():
    assert nearest("most", ["most_requests", "most_bytes"]) is None
    assert nearest("zzz", ["most_requests", "bytes"]) is None


@pytest.mark.parametrize("order", get_args(Order))
def test_every_order_may_be_named(order: str):
    assert load.read(with_line(f"    order: {order}")).pools[0].order == order


def test_every_order_of_ours_is_known_and_no_other():
    assert sorted(ORDERINGS) == list(get_args(Order))


def test_without_an_order_it_is_ml():
    assert load.read(MINIMAL).pools[0].order == "ml"


def test_a_tenants_later_key_is_refused():
    line = f"tenants: [{{name: a, keys: ['{digest_of('fb_x')}'], priority: 1}}]"
    assert errors(with_line(line)) == [(7, "tenants[0].priority", "is not in this version")]


def test_one_model_belongs_to_one_pool():
    pool = "  - {name: two, models: [n, {m: x}], endpoints: [{name: f, engine: sim}]}"
    message = "the model 'm' stands twice, first at pools[0].models[0]"
    assert errors(with_line(pool)) == [(7, "pools[1].models[1]", message)]


def test_names_of_pools_and_endpoints_stand_once():
    pool = "  - {name: main, models: [n], endpoints: [{name: e, engine: sim}]}"
    assert errors(with_line(pool)) == [
        (
            7,
            "pools[1].endpoints[0].name",
            "the name 'e' stands twice, first at pools[0].endpoints[0].name",
        ),
        (7, "pools[1].name", "the name 'main' stands twice, first at pools[0].name"),
    ]


def test_tenants_and_their_keys_stand_once():
    one, two = digest_of("fb_one"), digest_of("fb_two")
    shouted = "sha256:" + one[7:].upper()
    entries = f"{{name: a, keys: ['{one}']}}, {{name: a, keys: ['{two}', '{shouted}']}}"
    tenants = f"tenants: [{entries}]"
    assert errors(with_line(tenants)) == [
        (7, "tenants[1].keys[1]", "the key stands twice, first at tenants[0].keys[0]"),
        (7, "tenants[1].name", "the name 'a' stands twice, first at tenants[0].name"),
    ]


def test_a_tenant_needs_a_key():
    assert errors(with_line("tenants: [{name: a, keys: []}]")) == [
        (7, "tenants[0].keys", "needs at least one entry")
    ]


def test_the_digest_of_the_tenants_own_name_is_refused():
    line = f"tenants: [{{name: acme, keys: ['{digest_of('acme')}']}}]"
    message = "is the digest of the tenant's name; anybody can guess that key"
    assert errors(with_line(line)) == [(7, "tenants[0].keys[0]", message)]


def test_a_key_that_looks_like_a_number_is_not_repeated():
    text = with_line("tenants: [{name: a, keys: [8150715]}]\nserver: {admin: {key: 8150715}}")
    told = errors(text.replace("engine: sim", "engine: vllm, url: http://h, key: 8150715"))
    assert len(told) == 3
    assert "8150715" not in str(told)


def test_a_version_in_quotes_is_told_apart():
    text = MINIMAL.replace("version: 1", "version: '1'")
    assert errors(text) == [(1, "version", "must be 1, without quotes")]


@pytest.mark.parametrize(
    ("members", "path", "message"),
    [
        ("prefix: {warm: true}", "prefix.warm", "must be a mapping; {} takes every default"),
        (
            "prefix: {guard: {below: 50}}",
            "prefix.guard.below",
            "must be less than 1; ten",
        ),
        ("prefix: {warm: {uses: true}}", "prefix.warm.uses", "must not be true or false"),
        (
            "endpoints: [{name: a, engine: sim, speculative: eagle9}]",
            "endpoints[0].speculative",
            "'eagle9' is not one of draft_model, eagle, eagle3, lookahead, medusa, mtp, ngram, ",
        ),
    ],
)
def test_what_a_pool_cannot_be_is_told_with_what_it_can(members: str, path: str, message: str):
    own = "" if members.startswith("endpoints") else ", endpoints: [{name: a, engine: sim}]"
    with pytest.raises(ConfigErrors) as caught:
        load.read(f"version: 1\npools: [{{name: p, models: [m], {members}{own}}}]\n", {})
    (fault,) = caught.value.errors
    assert (fault.path, fault.message[: len(message)]) == (f"pools[0].{path}", message)
