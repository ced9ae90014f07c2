import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.config.sections import Tenant
from forebay.gateway.keys import OPEN, Grant, Keys, digest_of, new_key

ACME_KEY, ACME_DIGEST = new_key()
BOB_KEY, BOB_DIGEST = new_key()
ACME = Tenant.model_validate({"name": "acme", "keys": [ACME_DIGEST]})
BOB = Tenant.model_validate({"name": "bob", "keys": [digest_of("fb_older"), BOB_DIGEST]})
KEYS = Keys([ACME, BOB])


def found(authorization: bytes | None, x_api_key: bytes | None, keys: Keys = KEYS) -> object:
    grant = keys.find(authorization, x_api_key)
    return grant.tenant if isinstance(grant, Grant) else None


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
def test_a_bearer_key_finds_its_tenant(scheme: str):
    assert found(f"{scheme}{ACME_KEY}".encode(), None) is ACME


def test_an_x_api_key_finds_its_tenant():
    assert found(None, BOB_KEY.encode()) is BOB


def test_each_key_of_a_tenant_counts():
    assert found(b"Bearer fb_older", None) is BOB


def test_a_bearer_key_counts_before_an_x_api_key():
    assert found(f"Bearer {ACME_KEY}".encode(), BOB_KEY.encode()) is ACME
    assert found(b"Bearer wrong", BOB_KEY.encode()) is None


def test_another_kind_of_authorization_is_passed_over():
    assert found(b"Basic YTpi", BOB_KEY.encode()) is BOB


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        ACME_KEY.encode(),
        b"Bearer " + b"x" * 9999,
        f"Bearer {ACME_KEY}x".encode(),
        f"Bearer {ACME_DIGEST}".encode(),
    ],
)
def test_no_valid_key_finds_nobody(authorization: bytes | None):
    assert found(authorization, None) is None


@given(st.none() | st.binary(), st.none() | st.binary())
def test_malformed_keys_never_raise(authorization: bytes | None, x_api_key: bytes | None):
    assert found(authorization, x_api_key) is None


def test_without_tenants_everybody_may_call_and_see_diagnostics():
    assert found(None, None, Keys([])) is OPEN
    assert found(b"Bearer x", None, Keys([])) is OPEN
    assert OPEN.debug_headers


def test_a_new_key_has_256_random_bits_and_an_id():
    key, digest = new_key()
    assert re.fullmatch(r"fb_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", key)
    assert digest == digest_of(key)
    assert new_key()[0] != key


def test_a_key_counts_until_its_very_moment():
    times: list[float] = []
    tenant = Tenant.model_validate(
        {"name": "t", "keys": [{"digest": ACME_DIGEST, "expires": "2027-01-01"}]}
    )
    keys = Keys([tenant], clock=times.pop)
    until = 1798761600.0
    for now, expected in ((until - 0.001, tenant), (until, None), (until + 9, None)):
        times.append(now)
        assert found(None, ACME_KEY.encode(), keys) is expected
    grant = Keys([tenant], clock=lambda: 0.0).find(None, ACME_KEY.encode())
    assert isinstance(grant, Grant)
    assert grant.until == until


def test_a_tenant_without_keys_lets_nobody_in():
    assert found(None, b"x", Keys([Tenant(name="t")])) is None


def test_a_key_that_ended_at_the_beginning_of_time_has_ended():
    tenant = Tenant.model_validate(
        {"name": "t", "keys": [{"digest": ACME_DIGEST, "expires": "1970-01-01"}]}
    )
    assert found(None, ACME_KEY.encode(), Keys([tenant])) is None
