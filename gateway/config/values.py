"""Texts with a form of their own: addresses, secrets, and the digests of API keys."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, available_timezones

from .suggest import did_you_mean
from .units import Substituted, shown

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_STATE_SCHEMES = ("redis", "rediss", "redis+sentinel", "redis+cluster", "unix")
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
_COMMON = (
    "",
    "0",
    "1",
    "12345",
    "123456",
    "12345678",
    "123456789",
    "1234567890",
    "abc123",
    "access",
    "admin",
    "anonymous",
    "api",
    "api-key",
    "api_key",
    "apikey",
    "bearer",
    "changeme",
    "changeit",
    "default",
    "demo",
    "dev",
    "dummy",
    "empty",
    "EMPTY",
    "example",
    "fake",
    "foo",
    "foobar",
    "forebay",
    "guest",
    "hello",
    "key",
    "letmein",
    "llama",
    "local",
    "master",
    "mykey",
    "my-key",
    "my-secret-key",
    "no-key",
    "none",
    "None",
    "not-needed",
    "null",
    "openai",
    "passw0rd",
    "password",
    "password1",
    "placeholder",
    "pass",
    "prod",
    "public",
    "qwerty",
    "root",
    "secret",
    "secret-key",
    "secretkey",
    "sk-",
    "sk-1234",
    "sk-123456",
    "sk-fake",
    "sk-key",
    "sk-no-key-required",
    "sk-test",
    "sk-xxx",
    "staging",
    "string",
    "tenant",
    "test",
    "test-key",
    "test123",
    "testing",
    "token",
    "token-abc123",
    "unused",
    "user",
    "welcome",
    "x",
    "xxx",
    "your-api-key",
    "YOUR_API_KEY",
    "your_api_key",
)


def check_url(value: str) -> str:
    """Return an http(s) address without a trailing slash.

    Refuses what would change where requests go, or put a secret into logs: credentials, a query, a
    fragment, dot segments.
    """
    if not value.isascii() or not value.isprintable() or " " in value or "\\" in value:
        raise ValueError("must be an address of visible ASCII characters")
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{shown(value)} is no address: wrong host or port") from error
    if url.scheme not in {"http", "https"} or not url.hostname or port == 0:
        raise ValueError("must be an address such as http://10.0.0.1:8000")
    if "@" in url.netloc:
        raise ValueError("must not hold credentials; an engine's key stands under 'key'")
    if "?" in value or "#" in value:
        raise ValueError("must not have a query or a fragment")
    if {".", ".."} & set(unquote(unquote(url.path)).split("/")) or "//" in url.path:
        raise ValueError("must not have empty or dot segments in its path")
    return value.rstrip("/")


def check_engine_url(value: str) -> str:
    """Return an address as `check_url` does; refuse one with the /v1 that is added to it."""
    url = check_url(value)
    if url.endswith("/v1"):
        raise ValueError("must end before /v1, which forebay adds itself")
    return url


def check_zmq(value: str) -> str:
    """Return a ZMQ address, of a host and port or of a socket file."""
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be an address of visible ASCII characters")
    if value.startswith("ipc://") and len(value) > 6:
        return value
    host, colon, port = value.removeprefix("tcp://").rpartition(":")
    fits = port.isdecimal() and 0 < int(port) < 65536
    if not value.startswith("tcp://") or not colon or not host or not fits:
        raise ValueError("must be an address such as tcp://10.0.0.1:5557")
    return value


def check_state_url(value: str) -> str:
    """Return the address of a Redis or Valkey. It may hold a password, so nothing repeats it."""
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be an address of visible ASCII characters")
    scheme, _, rest = value.partition("://")
    hosts = rest.partition("/")[0].rpartition("@")[2].split(",")
    local = scheme == "unix" and rest.startswith("/")
    if scheme not in _STATE_SCHEMES or not (local or all(_HOST.fullmatch(host) for host in hosts)):
        schemes = ", ".join(_STATE_SCHEMES)
        raise ValueError(f"must be an address such as redis://localhost:6379/0 ({schemes})")
    return value


def check_secret(value: str) -> str:
    """Return a key that can stand in a header as it is."""
    if not value:
        raise ValueError("is empty")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError("must be visible ASCII characters without spaces or line ends")
    return value


def check_digest(value: str) -> str:
    """Return `sha256:` and 64 lower-case hexadecimal digits."""
    match = _DIGEST.fullmatch(value)
    if match is None:
        raise ValueError(_why_no_digest(value))
    if match[1].lower() in _common_digests():
        raise ValueError("is the digest of a common word; make a key with 'forebay keys new'")
    return "sha256:" + match[1].lower()


def check_zone(value: str) -> str:
    """Return the name of a time zone that is known here; raises ValueError."""
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError):  # no such file; a folder; a path
        hint = "" if isinstance(value, Substituted) else did_you_mean(value, available_timezones())
        raise ValueError(f"there is no time zone {shown(value)}{hint}") from None
    return value


def is_digest_of(digest: str, word: str) -> bool:
    """Tell whether a checked digest is that of `word`, with or without a line end."""
    return digest.removeprefix("sha256:") in _digests(word)


def _why_no_digest(value: str) -> str:
    digits = value.removeprefix("sha256:")
    if digits != value and re.fullmatch(r"[0-9a-fA-F]+", digits):
        return f"has {len(digits)} digits after 'sha256:', not 64; paste the whole line"
    return "must be 'sha256:' and 64 hexadecimal digits, as 'forebay keys new' prints them"


@cache
def _common_digests() -> frozenset[str]:
    return frozenset(digest for word in _COMMON for digest in _digests(word))


def _digests(word: str) -> tuple[str, ...]:
    # With a line end too: `echo word | sha256sum` hashes one.
    return tuple(hashlib.sha256(text.encode()).hexdigest() for text in (word, word + "\n"))
