"""What the YAML may say of tenants, plans, limits, SLA classes, prices and state."""

import re
from pathlib import Path
from typing import Any

import pytest

from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors
from forebay.gateway.config.sections import Config, Tenant
from forebay.gateway.config.tenancy import Limits, reserve_of
from forebay.gateway.keys import digest_of

KEY = digest_of("fb_a")
BASE = """\
version: 1
pools: [{name: main, models: [m, n], endpoints: [{name: e, engine: sim}]}]
"""


def read(text: str) -> Config:
    return load.read(BASE + text, {"S": "hunter2"})


def errors(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(ConfigErrors) as caught:
        read(text)
    return [(each.line, each.path, each.message) for each in caught.value.errors]


def tenant(members: str, rest: str = "") -> Tenant:
    return read(f"tenants: [{{name: a, keys: ['{KEY}'], {members}}}]\n{rest}").tenants[0]


PLANS = """\
sla: {fast: {ttft: 500ms}, slow: {}}
plans:
  gold:
    sla: fast
    weight: 8
    fail: closed
    limits: {requests_per_minute: 1k, tokens_per_minute: 200k, models: [m], sla: [fast, slow]}
"""


def test_a_tenant_takes_its_plans_settings():
    taken = tenant("plan: gold", PLANS)
    assert (taken.sla, taken.weight, taken.fail) == ("fast", 8.0, "closed")
    assert taken.limits == Limits(
        requests_per_minute=1000, tokens_per_minute=200_000, models=("m",), sla=("fast", "slow")
    )


def test_a_tenants_own_settings_go_before_its_plans_key_by_key():
    own = tenant("plan: gold, weight: 1, sla: slow, limits: {requests_per_minute: 5}", PLANS)
    assert (own.sla, own.weight, own.fail) == ("slow", 1.0, "closed")
    assert (own.limits.requests_per_minute, own.limits.tokens_per_minute) == (5, 200_000)


def test_settings_are_taken_only_once():
    config = read(f"tenants: [{{name: a, plan: gold, keys: ['{KEY}']}}]\n{PLANS}")
    assert Config.model_validate(dict(config)) == config


def test_units_are_read_everywhere():
    limits = tenant(
        "limits: {tokens_per_day: 20M, tokens_per_month: 1G, max_prompt: 128k, max_output: 4k,"
        " concurrent: 32, money_per_day: 0.5, money_per_month: 10}",
        "prices: {m: {prompt: 0.5, cached: 0.05, output: 1.5}, n: {}}\n",
    ).limits
    assert limits == Limits(
        tokens_per_day=20_000_000,
        tokens_per_month=10**9,
        max_prompt=128_000,
        max_output=4000,
        concurrent=32,
        money_per_day=0.5,
        money_per_month=10,
    )
    sla = read("sla: {x: {ttft: 500ms, tpot: 50ms, deadline: 5m, timeouts: {total: 30m}}}\n").sla
    assert (sla["x"].ttft, sla["x"].tpot, sla["x"].deadline) == (0.5, 0.05, 300)
    assert sla["x"].timeouts.model_dump(exclude_none=True) == {"total": 1800}


@pytest.mark.parametrize(
    ("written", "expires"),
    [
        ("2027-01-01", 1798761600),
        ("2027-01-01T00:00:01Z", 1798761601),
        ("2027-01-01T02:00:00+02:00", 1798761600),
        ("'2027-01-01 00:00:01'", 1798761601),
    ],
)
def test_a_key_may_have_an_end_and_a_note(written: str, expires: float):
    text = f"tenants: [{{name: a, keys: [{{digest: '{KEY}', expires: {written}, note: ci}}]}}]\n"
    (key,) = read(text).tenants[0].keys
    assert (key.digest, key.expires, key.note) == (KEY, expires, "ci")


def test_a_bare_digest_is_a_key_without_an_end():
    (key,) = tenant("debug_headers: true").keys
    assert (key.digest, key.expires, key.note) == (KEY, None, None)


@pytest.mark.parametrize(
    ("members", "path", "message"),
    [
        ("plan: glod", "plan", "there is no plan 'glod'; did you mean 'gold'?"),
        ("plan: '${S}'", "plan", "there is no plan the value from the environment"),
        ("sla: fsat", "sla", "there is no SLA class 'fsat'; did you mean 'fast'?"),
        (
            "limits: {sla: [fast, solw]}",
            "limits.sla[1]",
            "there is no SLA class 'solw'; did you mean 'slow'?",
        ),
        ("limits: {models: [x]}", "limits.models[0]", "no pool has the model 'x'"),
        (
            "limits: {request_per_minute: 5}",
            "limits.request_per_minute",
            "is no known key; did you mean 'requests_per_minute'?",
        ),
        ("limits: {requests_per_minute: 0}", "limits.requests_per_minute", None),
        ("limits: {tokens_per_minute: 5x}", "limits.tokens_per_minute", None),
        ("limits: {queue_share: 0}", "limits.queue_share", "must be greater than 0"),
        ("limits: {concurrent: true}", "limits.concurrent", "must not be true or false"),
        (
            "limits: {money_per_day: 1}",
            "",
            "has a limit on money, but 'prices' has none for 'm', 'n'",
        ),
        ("weight: 0", "weight", "must be greater than 0"),
        ("weight: true", "weight", "must not be true or false"),
        ("reserve: much", "reserve", "must be a share such as 0.1 or 10%, not 'much'"),
        ("reserve: 120%", "reserve", None),
        (
            "timezone: Europe/Berln",
            "timezone",
            "there is no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?",
        ),
        ("timezone: ../etc/passwd", "timezone", "there is no time zone '../etc/passwd'"),
        ("timezone: Europe", "timezone", None),
        ("fail: opne", "fail", "'opne' is not one of open, closed; did you mean 'open'?"),
    ],
)
def test_a_wrong_setting_of_a_tenant_is_named(members: str, path: str, message: str | None):
    ((line, where, told),) = errors(f"tenants: [{{name: a, keys: ['{KEY}'], {members}}}]\n{PLANS}")
    assert (line, where) == (3, f"tenants[0].{path}".rstrip("."))
    assert message in (told, None)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("plans: {gold: {limit: {}}}", "plans.gold.limit", "did you mean 'limits'?"),
        ("plans: {gold: {sla: x}}", "plans.gold.sla", "there is no SLA class 'x'"),
        ("plans: {'a b': {}}", "plans.a b", "must be 1 to 63 letters"),
        ("plans: []", "plans", "must be a mapping"),
        ("sla: {x: {ttft: 5}}", "sla.x.ttft", "has no unit"),
        ("sla: {x: {tftt: 5s}}", "sla.x.tftt", "did you mean 'ttft'?"),
        ("sla: {x: {timeouts: {idel: 5s}}}", "sla.x.timeouts.idel", "did you mean 'idle'?"),
        ("prices: {q: {prompt: 1}}", "prices.q", "no pool has the model 'q'"),
        ("prices: {m: {promt: 1}}", "prices.m.promt", "did you mean 'prompt'?"),
        ("prices: {m: {prompt: -1}}", "prices.m.prompt", "must be greater than or equal to 0"),
        ("state: {url: localhost}", "state.url", "must be an address such as redis://"),
        ("state: {url: 'redis://'}", "state.url", "must be an address such as redis://"),
        ("state: {secret: ''}", "state.secret", "is empty"),
        ("auth: {jwt: {}}", "auth.jwt.issuer", "is missing"),
        (
            "auth: {jwt: {issuer: i, audience: a, jwks_url: http://h, algorithms: [HS256]}}",
            "auth.jwt.algorithms[0]",
            "'HS256' is not one of",
        ),
        (
            "auth: {jwt: {issuer: i, audience: a, jwks_url: http://h}}",
            "auth.jwt",
            "needs 'tenants': a token names one of them",
        ),
    ],
)
def test_a_wrong_value_of_the_file_is_named(text: str, path: str, message: str):
    told = {where: what for line, where, what in errors(text + "\n") if line == 3}
    assert message in told[path]


@pytest.mark.parametrize(
    ("key", "path", "message"),
    [
        ("{digest: sha256:aa}", ".digest", "has 2 digits after 'sha256:'"),
        ("{expires: 2027-01-01}", ".digest", "is missing"),
        (f"{{digest: '{KEY}', expires: tomorrow}}", ".expires", "must be a date such as"),
        (f"{{digest: '{KEY}', expires: '${{S}}'}}", ".expires", "the value from the environment"),
        (f"{{digest: '{KEY}', expire: 2027-01-01}}", ".expire", "did you mean 'expires'?"),
        (f"{{digest: '{digest_of('a')}'}}", ".digest", "is the digest of the tenant's name"),
    ],
)
def test_a_wrong_key_is_named(key: str, path: str, message: str):
    ((line, where, told),) = errors(f"tenants: [{{name: a, keys: [{key}]}}]\n")
    assert (line, where) == (3, f"tenants[0].keys[0]{path}")
    assert message in told


def test_reserves_are_no_more_than_there_is():
    text = f"tenants: [{{name: a, keys: ['{KEY}'], reserve: 50%}}]\n"
    plans = "plans: {vip: {reserve: true}, more: {reserve: 0.4}}\n"
    assert errors(text + plans) == [
        (3, "tenants[0].reserve", "makes all reserves 110% of each pool's places")
    ]
    assert reserves_of(text + plans.replace("0.4", "0.3")) == [("tenant a", 0.5)]


@pytest.mark.parametrize(
    ("own", "reserve"),
    [
        ("plan: vip", ("plan vip", 0.2)),
        ("plan: vip, reserve: 5%", ("tenant a", 0.05)),
        ("plan: vip, reserve: false", ("", 0.0)),
        ("plan: other", ("", 0.0)),
        ("weight: 2", ("", 0.0)),
    ],
)
def test_a_tenant_draws_on_its_own_reserve_or_its_plans(own: str, reserve: tuple[str, float]):
    text = f"tenants: [{{name: a, keys: ['{KEY}'], {own}}}]\n"
    assert reserves_of(text + "plans: {vip: {reserve: true}, other: {}}\n") == [reserve]


def reserves_of(text: str) -> list[tuple[str, float]]:
    config = read(text)
    return [reserve_of(tenant, config.plans) for tenant in config.tenants]


def test_one_key_stands_once_in_whatever_form():
    text = f"tenants: [{{name: a, keys: ['{KEY}']}}, {{name: b, keys: [{{digest: '{KEY}'}}]}}]\n"
    assert errors(text) == [
        (
            3,
            "tenants[1].keys[0].digest",
            "the key stands twice, first at tenants[0].keys[0]",
        )
    ]


def test_only_an_issuers_tokens_can_do_without_keys():
    assert errors("tenants: [{name: a}]\n") == [
        (3, "tenants[0].keys", "is missing; only 'auth.jwt' can do without")
    ]
    jwt = "auth: {jwt: {issuer: i, audience: a, jwks_url: http://h}}\n"
    assert read(f"tenants: [{{name: a}}]\n{jwt}").tenants[0].keys == ()


def test_no_error_or_repr_repeats_a_password():
    config = read("state: {url: 'redis://:${S}@host:6379/0', secret: '${S}'}\n")
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(errors("state: {url: 'http://:${S}@host'}\n"))


PAGE = Path(__file__).parents[2] / "docs" / "tenants.md"


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_configurations_on_the_page_of_tenants_are_right(block: str):
    assert load.read(block, {"REDIS_PASSWORD": "secret"}).tenants


def test_the_page_of_tenants_says_what_each_limit_does():
    table = PAGE.read_text().partition("## What each limit does")[2].partition("##")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(
        Limits.model_fields
    )


def test_settings_made_in_python_are_resolved_too():
    made: dict[str, Any] = {
        "version": 1,
        "pools": [{"name": "p", "models": ["m"], "endpoints": [{"name": "e", "engine": "sim"}]}],
        "plans": {"gold": {"limits": {"concurrent": 3}}},
        "tenants": [{"name": "a", "keys": [KEY], "plan": "gold"}],
    }
    assert Config.model_validate(made).tenants[0].limits.concurrent == 3


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        "rediss://:password@10.0.0.1",
        "unix:///run/redis.sock",
        "redis+cluster://[::1]:7000",
        "redis+sentinel://:pw@s1:26379,s2:26379/main/0",
    ],
)
def test_every_kind_of_redis_has_an_address(url: str):
    told = read(f"state: {{url: '{url}'}}\n").state.url
    assert told is not None
    assert told.get_secret_value() == url
