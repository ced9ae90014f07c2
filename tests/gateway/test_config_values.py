import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.config.values import check_digest, check_engine_url, check_secret, check_url

GOOD_DIGEST = "sha256:" + hashlib.sha256(b"fb_1_x").hexdigest()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        ("https://engines.example.com/v2/team//", None),
        ("https://engines.example.com/v2/team/", "https://engines.example.com/v2/team"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://engine_0.ns.svc", "http://engine_0.ns.svc"),
    ],
)
def test_an_address_loses_its_trailing_slash(text: str, url: str | None):
    if url is None:
        with pytest.raises(ValueError, match="empty or dot segments"):
            check_url(text)
    else:
        assert check_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:8000",
        "//h",
        "ftp://h",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://:80",
        "http://h:0",
        "http://h:99999",
        "http://h:x",
        "http://[::1",
        "http://user:pw@h",
        "http://@h",
        "http://h?x=1",
        "http://h/?",
        "http://h#",
        "http://h/../x",
        "http://h/%2e%2e/x",
        "http://h/%252e%252e/x",
        "http://h/./x",
        "http://h/ x",
        "http://h\r\nx: y",
        "http://h\\@evil",
        "http://hé",
    ],
)
def test_a_wrong_address_is_refused(text: str):
    with pytest.raises(ValueError, match=r"must|no address"):
        check_url(text)


def test_an_engines_address_ends_before_v1():
    assert check_engine_url("https://h/api/") == "https://h/api"
    for text in ("http://h:8000/v1", "http://h:8000/v1/", "https://h/api/v1"):
        with pytest.raises(ValueError, match="must end before /v1, which forebay adds itself"):
            check_engine_url(text)


def test_credentials_in_an_address_are_not_repeated():
    with pytest.raises(ValueError, match="must not hold credentials") as caught:
        check_url("http://user:hunter2@h")
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_a_checked_address_has_nothing_that_could_split_a_header(text: str):
    try:
        url = check_url(text)
    except ValueError:
        return
    assert url.isascii()
    assert url.isprintable()


def test_a_secret_stands_in_a_header_as_it_is():
    assert check_secret("sk-!~aZ9") == "sk-!~aZ9"


@pytest.mark.parametrize("text", ["", "a b", "a\n", "a\r\nx: y", "é", "\x00", "\x7f"])
def test_a_secret_that_could_not_is_refused(text: str):
    with pytest.raises(ValueError, match=r"is empty|visible ASCII"):
        check_secret(text)


def test_a_digest_is_put_in_lower_case():
    assert check_digest("sha256:" + GOOD_DIGEST[7:].upper()) == GOOD_DIGEST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        GOOD_DIGEST[:-1],
        GOOD_DIGEST + "0",
        GOOD_DIGEST[7:],
        "sha512:" + "0" * 64,
        "fb_1_x",
        GOOD_DIGEST + "\n",
        GOOD_DIGEST[:-1] + "g",
        "sha256:" + "٣" * 64,
    ],
)
def test_a_cut_digest_or_none_is_refused(text: str):
    with pytest.raises(ValueError, match=r"digits"):
        check_digest(text)


def test_a_cut_digest_is_told_from_no_digest():
    with pytest.raises(ValueError, match="has 63 digits after 'sha256:', not 64; paste the whole"):
        check_digest(GOOD_DIGEST[:-1])


def test_a_key_pasted_instead_of_its_digest_is_not_repeated():
    with pytest.raises(ValueError, match="as 'forebay keys new' prints them") as caught:
        check_digest("fb_1_hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("word", ["", "password", "sk-test", "test", "changeme", "EMPTY"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_the_digest_of_a_common_word_is_refused(word: str, end: str):
    digest = hashlib.sha256((word + end).encode()).hexdigest()
    with pytest.raises(ValueError, match="is the digest of a common word"):
        check_digest(f"sha256:{digest}")
