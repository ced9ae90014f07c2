"""Addresses that are had, and those that are not."""

from __future__ import annotations

import errno

import pytest

from forebay.gateway.listening import listen, not_had, url_of
from forebay.policies.contracts import ConfigError


def test_a_port_that_is_taken_is_told_with_what_to_do():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            listen("127.0.0.1", port, hint="--port takes another")
    assert caught.value.message == (
        f"cannot listen on 127.0.0.1:{port}: address already in use; --port takes another"
    )


def test_an_address_that_is_nobodys_is_told_without_a_hint():
    with pytest.raises(ConfigError) as caught:
        listen("192.0.2.1", 0, hint="--port takes another")
    assert caught.value.message == "cannot listen on 192.0.2.1:0: cannot assign requested address"
    with pytest.raises(ConfigError, match="cannot listen on nosuch"):
        listen("nosuch.invalid", 0)


def test_a_port_that_is_not_for_this_user_is_told_with_what_to_do():
    refused = not_had("127.0.0.1", 80, PermissionError(errno.EACCES, "x"), hint="--port takes more")
    assert refused.message == "cannot listen on 127.0.0.1:80: permission denied; --port takes more"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("gpu-7", "http://gpu-7:80"),
    ],
)
def test_an_address_is_shown_as_a_browser_takes_it(host: str, url: str):
    assert url_of(host, 80) == url
