from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.config.units import (
    Substituted,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_share,
)

PARSERS = (parse_duration, parse_bytes, parse_count, parse_share)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1.5h", 5400), (0, 0)],
)
def test_a_duration_is_seconds(text: object, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64KiB", 65536),
        ("32MiB", 33554432),
        ("1GiB", 1073741824),
        ("10MB", 10_000_000),
        ("1.5 kB", 1500),
        ("12B", 12),
        ("12", 12),
        (12, 12),
    ],
)
def test_a_size_is_bytes(text: object, size: int):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "count"), [("200k", 200_000), ("20M", 20_000_000), ("1.5k", 1500), (7, 7), ("7", 7)]
)
def test_a_count_is_whole(text: object, count: int):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), (0.1, 0.1), ("0.1", 0.1), (1, 1), ("0", 0), ("12.5%", 0.125)]
)
def test_a_share_is_a_part_of_one(text: object, share: float):
    assert parse_share(text) == share


NO_QUANTITIES: list[object] = [True, False, None, [], {}, -1, 10**400, float("nan"), float("inf")]
NO_QUANTITIES.extend(
    ["", "s", "-1s", "1 2s", "1e3", "nan", "9" * 5000, "1٣s", "5xyz", "5s5s", "1.s"]
)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("value", NO_QUANTITIES)
def test_what_is_no_quantity_is_refused(parse: Callable[[object], float], value: object):
    with pytest.raises(ValueError, match=r"must be|no unit"):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (parse_duration, 30, "'30' has no unit; write one of ms, s, m, h, d after it"),
        (parse_duration, "30", "'30' has no unit; write one of ms, s, m, h, d after it"),
        (parse_duration, "30S", "'S' in '30S' is no unit here; use one of ms, s, m, h, d"),
        (parse_duration, True, "must be a duration such as 500ms, 30s, 5m, 2h or 1d, not 'True'"),
        (parse_duration, "367d", "'367d' is longer than a year"),
        (parse_count, "2MiB", "'MiB' in '2MiB' is no unit here; use one of k, M, G"),
        (parse_count, "1.5", "'1.5' is no whole number of things"),
        (parse_share, "10ms", "'ms' in '10ms' is no unit here; use one of %"),
        (parse_bytes, [], "must be a size such as 64KiB, 32MiB, 1GiB or 10MB, not a list"),
    ],
)
def test_an_error_says_what_to_write(parse: Callable[[object], float], value: object, message: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        parse(value)
    assert str(caught.value) == message


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["hunter2", "5hunter2", "1.5"])
def test_a_value_from_the_environment_is_never_repeated(
    parse: Callable[[object], float], text: str
):
    try:
        parse(Substituted(text))
    except ValueError as error:
        assert text not in str(error)  # noqa: PT017 - some of these are right


@given(st.text() | st.floats() | st.integers() | st.none() | st.booleans())
def test_nothing_but_a_value_error_comes_out(value: object):
    for parse in PARSERS:
        try:
            assert parse(value) >= 0
        except ValueError:
            continue
