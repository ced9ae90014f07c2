import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.config.sections import Tenant
from forebay.gateway.keys import OPEN, Keys, digest_of, new_key

ACME_KEY, ACME_DIGEST = new_key()
BOB_KEY, BOB_DIGEST = new_key()
ACME = Tenant(name="acme", keys=(ACME_DIGEST,))
BOB = Tenant(name="bob", keys=(digest_of("fb_older"), BOB_DIGEST))
KEYS = Keys([ACME, BOB])


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
def test_a_bearer_key_finds_its_tenant(scheme: str):
    assert KEYS.find(f"{scheme}{ACME_KEY}".encode(), None) is ACME


def test_an_x_api_key_finds_its_tenant():
    assert KEYS.find(None, BOB_KEY.encode()) is BOB


def test_each_key_of_a_tenant_counts():
    assert KEYS.find(b"Bearer fb_older", None) is BOB


def test_a_bearer_key_counts_before_an_x_api_key():
    assert KEYS.find(f"Bearer {ACME_KEY}".encode(), BOB_KEY.encode()) is ACME
    assert KEYS.find(b"Bearer wrong", BOB_KEY.encode()) is None


def test_another_kind_of_authorization_is_passed_over():
    assert KEYS.find(b"Basic YTpi", BOB_KEY.encode()) is BOB


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
    assert KEYS.find(authorization, None) is None


@given(st.none() | st.binary(), st.none() | st.binary())
def test_malformed_keys_never_raise(authorization: bytes | None, x_api_key: bytes | None):
    assert KEYS.find(authorization, x_api_key) is None


def test_without_tenants_everybody_may_call_and_see_diagnostics():
    assert Keys([]).find(None, None) is OPEN
    assert Keys([]).find(b"Bearer x", None) is OPEN
    assert OPEN.debug_headers


def test_a_new_key_has_256_random_bits_and_an_id():
    key, digest = new_key()
    assert re.fullmatch(r"fb_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", key)
    assert digest == digest_of(key)
    assert new_key()[0] != key
