"""Events as JSON lines: a fixed text, fields beside it, and nothing that a caller or engine wrote.

    logger.info("endpoint is up", extra={"pool": "llama", "endpoint": "vllm-0"})

Of an exception that answers a caller only the code is said, since its message may quote the caller
or the engine. The text of a foreign one is cut, escaped, and loses what it quotes; a traceback is
file, line and function, never source or values.
"""

from __future__ import annotations

import logging
import re
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from forebay.policies.contracts import EngineRefused, ForebayError, Rejected

from .text import clean

if TYPE_CHECKING:
    from types import TracebackType

MAX_TEXT = 512
MAX_FOREIGN = 200
MAX_FRAMES = 20
MAX_FIELDS = 32
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "taskName"),
    "color_message",  # uvicorn says the same twice
}
_QUOTED = re.compile(r"""'[^']*'?|"[^"]*"?""")
QUIET = ("httpx", "httpcore", "urllib3", "asyncio", "uvicorn")
"""Foreign loggers whose INFO and DEBUG lines say URLs, peers or steps that nobody asked for."""


class Lines(Protocol):
    """Takes whole lines."""

    def put(self, lines: bytes) -> None:
        """Queue one or more whole lines, without waiting."""
        ...


class JsonFormatter(logging.Formatter):
    """Turns a record into one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        line: dict[str, Any] = {
            "time": _date(record.created),
            "level": record.levelname.lower(),
            "event": _message(record),
            "logger": record.name,
        }
        extra = [(k, v) for k, v in vars(record).items() if k not in _STANDARD and k not in line]
        line.update({clean(k, 64): _plain(v) for k, v in extra[:MAX_FIELDS]})
        if record.exc_info and record.exc_info[1] is not None:
            line.update(_exception(record.exc_info[1], record.exc_info[2]))
        return msgspec.json.encode(line).decode()


class LinesHandler(logging.Handler):
    """Hands each record to a writer that never waits."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Format and queue one record; a record that cannot be formatted says so."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - logging must not raise where something is logged
            text = '{"level":"error","event":"log record cannot be formatted"}'
        self._lines.put(text.encode() + b"\n")


def configure(lines: Lines, *, level: str = "info") -> None:
    """Send every logger of the process to `lines`, in place of whatever handlers there were."""
    root = logging.getLogger()
    root.handlers[:] = [LinesHandler(lines)]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _message(record: logging.LogRecord) -> str:
    try:
        return clean(record.getMessage(), MAX_TEXT)
    except (TypeError, ValueError):
        return clean(str(record.msg), MAX_TEXT)


def _plain(value: object) -> object:
    """Return a value as JSON may say it: numbers as they are, the rest as cut text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, BaseException):
        return _text_of(value)
    if isinstance(value, list | tuple | set | frozenset):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType] - any items
        return [clean(str(item)) for item in items[:MAX_FIELDS]]
    return clean(str(value), MAX_TEXT)


def _exception(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    frames = traceback.extract_tb(trace, limit=-MAX_FRAMES)
    return {
        "error": _text_of(error),
        "error_type": type(error).__qualname__,
        "trace": [f"{_short(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames],
    }


def _text_of(error: BaseException) -> str:
    if isinstance(error, Rejected | EngineRefused):
        return f"{error.code} ({error.status})"
    if isinstance(error, ForebayError):
        return clean(error.message, MAX_TEXT)
    text = _QUOTED.sub("'…'", str(error))
    return clean(f"{type(error).__qualname__}: {text}", MAX_FOREIGN)


def _short(path: str) -> str:
    return "/".join(path.split("/")[-3:])


def _date(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
