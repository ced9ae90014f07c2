"""Events as JSON lines, and what must not get into them."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.telemetry import logs
from forebay.gateway.telemetry.logs import JsonFormatter, LinesHandler
from forebay.gateway.telemetry.text import clean
from forebay.policies.contracts import ConfigError, EngineRefused, InvalidRequest


class Kept:
    """Keeps the lines."""

    def __init__(self) -> None:
        self.data = b""

    def put(self, lines: bytes) -> None:
        self.data += lines

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


def logger_to(kept: Kept) -> logging.Logger:
    logger = logging.Logger("forebay.test", logging.DEBUG)  # noqa: LOG001 - one that no other test shares
    logger.addHandler(LinesHandler(kept))
    return logger


def test_an_event_is_one_line_with_its_fields():
    kept = Kept()
    fields = {"endpoint": "v0", "fails": 3, "share": 0.1, "ok": False, "last": None}
    logger_to(kept).warning("endpoint is down", extra=fields)
    (line,) = kept.lines
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "event": "endpoint is down",
        "logger": "forebay.test",
        **fields,
    }


def test_the_date_is_utc_to_the_millisecond():
    record = logging.makeLogRecord({"created": 1_700_000_000.25})
    assert json.loads(JsonFormatter().format(record))["time"] == "2023-11-14T22:13:20.250Z"


def test_lists_are_cut_and_their_items_are_text():
    kept = Kept()
    logger_to(kept).info("reloaded", extra={"added": ("a", "b"), "gone": [object] * 100})
    (line,) = kept.lines
    assert line["added"] == ["a", "b"]
    assert len(line["gone"]) == logs.MAX_FIELDS


def test_a_field_cannot_take_the_place_of_the_event():
    kept = Kept()
    logger_to(kept).info("true", extra={"event": "forged", "level": "debug", "time": "never"})
    (line,) = kept.lines
    assert (line["event"], line["level"]) == ("true", "info")
    assert line["time"] != "never"


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "\ud800", "\x00", "x" * 10_000])
def test_text_is_cut_and_escaped_into_one_line(text: str):
    kept = Kept()
    logger_to(kept).info(text, extra={"field": text, "items": [text]})
    (line,) = kept.lines
    shown = (line["event"], line["field"], *line["items"])
    assert all(value.isprintable() and len(value) <= 2 * logs.MAX_TEXT for value in shown)


def failure(error: Exception) -> dict[str, Any]:
    kept = Kept()

    def inner(secret: str) -> None:
        assert secret
        raise error

    try:
        inner("canary in a local variable")
    except Exception:  # noqa: BLE001 - any error is what the test is about
        logger_to(kept).error("a bug", exc_info=sys.exc_info())
    (line,) = kept.lines
    return line


def test_a_traceback_is_places_without_source_or_values():
    line = failure(RuntimeError("broken"))
    assert (line["error"], line["error_type"]) == ("RuntimeError: broken", "RuntimeError")
    assert [place.rsplit(" ", 1)[1] for place in line["trace"]] == ["failure", "inner"]
    assert "canary" not in json.dumps(line)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("line 3: no such key"), "line 3: no such key"),
        (InvalidRequest("no model 'canary'", status=404), "invalid_request (404)"),
        (EngineRefused("bad prompt: canary"), "engine_refused (502)"),
        (
            ValueError("invalid literal for int(): 'canary'"),
            "ValueError: invalid literal for int(): '…'",
        ),
        (KeyError("canary"), "KeyError: '…'"),
        (ValueError('unfinished "canary'), "ValueError: unfinished '…'"),
        (ValueError("a\nb\x1b[1m"), "ValueError: a\\nb\\x1b[1m"),
    ],
)
def test_an_exception_says_no_more_than_is_safe(error: Exception, said: str):
    assert failure(error)["error"] == said
    kept = Kept()
    logger_to(kept).info("probe failed", extra={"why": error})
    assert kept.lines[0]["why"] == said


def test_the_text_of_a_foreign_exception_is_cut():
    assert len(failure(ValueError("x" * 10_000))["error"]) == logs.MAX_FOREIGN


def test_a_wrong_format_is_logged_all_the_same():
    kept = Kept()
    # The fault under test: more arguments than places.
    logger_to(kept).info("no place", 1)
    assert kept.lines[0]["event"] == "no place"


def test_a_record_that_cannot_be_formatted_raises_nothing():
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError

    kept = Kept()
    logger_to(kept).info("odd", extra={"value": Unprintable()})
    assert [line["event"] for line in kept.lines] == ["log record cannot be formatted"]


def test_configuring_sends_the_root_to_the_lines_and_quiets_foreign_loggers():
    root, httpx = logging.getLogger(), logging.getLogger("httpx")
    before = root.handlers[:], root.level, httpx.level
    kept = Kept()
    try:
        logs.configure(kept, level="debug")
        httpx.info("HTTP Request: POST http://engine/?key=canary")
        logging.getLogger("forebay.x").debug("seen")
    finally:
        root.handlers[:], level, httpx.level = before
        root.setLevel(level)
        for name in logs.QUIET:
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert [line["event"] for line in kept.lines] == ["seen"]


@given(st.text())
def test_cleaned_text_is_printable_and_short(text: str):
    shown = clean(text, 40)
    assert shown.isprintable()
    assert (shown == text) is (text.isprintable() and len(text) <= 40)
    assert len(shown) <= 40 * len("\\U0010ffff")
