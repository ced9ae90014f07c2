"""Readers of request traces: lines in, requests out. No files, no clock.

A format is known by its first line: the columns of a CSV header, or the keys of a JSON object.

| format | from | columns or keys |
|---|---|---|
| plain | anybody | `arrival_s, prompt_tokens, output_tokens`; `tenant, session, max_tokens` |
| mooncake | Mooncake | `timestamp` (ms), `input_length, output_length, hash_ids` (512 tokens) |
| azure | Azure 2023 | `TIMESTAMP` (a date), `ContextTokens, GeneratedTokens` |
| servegen | ServeGen | `timestamp_s, client, input_tokens, output_tokens` (reasoning in it) |
| vtc | VTC | `client, req_time_s, prompt_len, output_len` |
| vidur | vidur | `num_prefill_tokens, num_decode_tokens` |
| agent | tau-bench, glaive | `session, turn, input_length, output_length`; `hash_ids` (64 tokens) |

The last two have no times: gaps are drawn (exponential, one a second on average, by seed): they
say nothing about bursts, and a session's turns do not wait for one another.
"""

from __future__ import annotations

import csv
import re
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_MOONCAKE_BLOCK = 512
_TAU_BLOCK = 64
_UNREAD = re.compile(r"(?:invalid literal for int|could not convert string to float).*: ('.*')$")
_FEW = 1
"""Prompt and output tokens are at least this: an engine samples from something, and something."""


class TraceRequest(NamedTuple):
    """One request of a trace; `arrival_s` counts from the first one."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    session: str = ""
    max_tokens: int | None = None
    hashes: tuple[int, ...] = ()
    """Ids of the prompt's blocks, equal where the prompts are equal up to there; or empty."""
    block_tokens: int = 0
    """Tokens in each of those blocks."""


class _Format(NamedTuple):
    """How one kind of row is known and read; `read` gives a request with its raw time."""

    name: str
    needs: frozenset[str]
    read: Callable[[Mapping[str, Any]], TraceRequest]
    timed: bool = True


def parse(lines: Iterable[str], *, seed: int = 0) -> list[TraceRequest]:
    """Read a trace of any known format, in order of arrival.

    Raises ValueError, with the number of the line, for what cannot be read.
    """
    numbered = enumerate(lines, 1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        raise ValueError("the trace is empty")
    rows = (
        _json_rows(first, numbered) if first[1].lstrip()[0] == "{" else _csv_rows(first, numbered)
    )
    requests = _read(rows, Random(seed))  # noqa: S311 - draws gaps, hides nothing
    if not requests:
        raise ValueError("the trace has no requests")
    return _from_zero(requests)


def format_of(first_line: str) -> str:
    """Name the format of a trace by its first line; raises ValueError when it is none of ours."""
    first, again = (1, first_line), iter([(1, first_line)])
    is_json = first_line.lstrip().startswith("{")
    _, row = next(_json_rows(first, again) if is_json else _csv_rows(first, again))
    return _format(frozenset(row)).name


def _read(rows: Iterator[tuple[int, Mapping[str, Any]]], rng: Random) -> list[TraceRequest]:
    requests: list[TraceRequest] = []
    form: _Format | None = None
    clock = 0.0
    for number, row in rows:
        try:
            form = form or _format(frozenset(row))
            request = form.read(row)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {_said(error)}") from None
        if not form.timed:
            request = request._replace(arrival_s=clock)
            clock += rng.expovariate(1.0)
        requests.append(request)
    return requests


def _from_zero(requests: list[TraceRequest]) -> list[TraceRequest]:
    requests.sort(key=lambda request: request.arrival_s)
    start = requests[0].arrival_s
    return [r._replace(arrival_s=r.arrival_s - start) for r in requests] if start else requests


def _json_rows(
    first: tuple[int, str], rest: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, line in (first, *rest):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: is no JSON object: {error}") from None


def _csv_rows(
    first: tuple[int, str], rest: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    header = next(csv.reader([first[1]]))
    names = [name.strip() for name in header]
    for number, line in rest:
        if not line.strip():
            continue
        fields = next(csv.reader([line]))
        if len(fields) != len(names):
            raise ValueError(f"line {number}: {len(fields)} fields, the header has {len(names)}")
        yield number, dict(zip(names, fields, strict=True))


def _format(names: frozenset[str]) -> _Format:
    for form in _FORMATS:
        if form.needs <= names:
            return form
    known = "; ".join(f"{form.name}: {', '.join(sorted(form.needs))}" for form in _FORMATS)
    raise ValueError(f"no trace format has {', '.join(sorted(names))} (known are {known})")


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    unread = _UNREAD.match(str(error))
    return f"{unread[1]} is no number here" if unread else str(error)


def _request(  # noqa: PLR0913 - one for each thing a row may tell
    arrival_s: float,
    prompt_tokens: Any,
    output_tokens: Any,
    *,
    tenant: Any = "",
    session: Any = "",
    max_tokens: Any = None,
    hashes: Iterable[int] = (),
    block_tokens: int = 0,
) -> TraceRequest:
    prompt, output = int(prompt_tokens), int(output_tokens)
    if prompt < 0 or output < 0 or not 0 <= arrival_s < float("inf"):
        raise ValueError("times and token counts must be at least 0")
    limit = None if max_tokens in (None, "") else int(max_tokens)
    return TraceRequest(
        arrival_s,
        max(_FEW, prompt),
        max(_FEW, output),
        str(tenant),
        str(session),
        limit,
        tuple(hashes),
        block_tokens,
    )


def _plain(row: Mapping[str, Any]) -> TraceRequest:
    return _request(
        float(row["arrival_s"]),
        row["prompt_tokens"],
        row["output_tokens"],
        tenant=row.get("tenant", ""),
        session=row.get("session", ""),
        max_tokens=row.get("max_tokens"),
    )


def _mooncake(row: Mapping[str, Any]) -> TraceRequest:
    return _request(
        float(row["timestamp"]) / 1000,
        row["input_length"],
        row["output_length"],
        hashes=row["hash_ids"],
        block_tokens=_MOONCAKE_BLOCK,
    )


def _azure(row: Mapping[str, Any]) -> TraceRequest:
    # Seven digits after the point are one more than a datetime holds.
    whole, _, part = str(row["TIMESTAMP"]).partition(".")
    seconds = (datetime.fromisoformat(whole) - _EPOCH).total_seconds()
    fraction = float(f"0.{part}") if part else 0.0
    return _request(seconds + fraction, row["ContextTokens"], row["GeneratedTokens"])


def _servegen(row: Mapping[str, Any]) -> TraceRequest:
    return _request(
        float(row["timestamp_s"]), row["input_tokens"], row["output_tokens"], tenant=row["client"]
    )


def _vtc(row: Mapping[str, Any]) -> TraceRequest:
    return _request(
        float(row["req_time_s"]), row["prompt_len"], row["output_len"], tenant=row["client"]
    )


def _vidur(row: Mapping[str, Any]) -> TraceRequest:
    return _request(0.0, float(row["num_prefill_tokens"]), float(row["num_decode_tokens"]))


def _agent(row: Mapping[str, Any]) -> TraceRequest:
    hashes = row.get("hash_ids", ())
    return _request(
        0.0,
        row["input_length"],
        row["output_length"],
        session=row["session"],
        hashes=hashes,
        block_tokens=_TAU_BLOCK if hashes else 0,
    )


_EPOCH = datetime.fromisoformat("2000-01-01 00:00:00")
_FORMATS = (
    _Format("plain", frozenset({"arrival_s", "prompt_tokens", "output_tokens"}), _plain),
    _Format(
        "mooncake", frozenset({"timestamp", "input_length", "output_length", "hash_ids"}), _mooncake
    ),
    _Format("azure", frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    _Format(
        "servegen", frozenset({"timestamp_s", "client", "input_tokens", "output_tokens"}), _servegen
    ),
    _Format("vtc", frozenset({"client", "req_time_s", "prompt_len", "output_len"}), _vtc),
    _Format("vidur", frozenset({"num_prefill_tokens", "num_decode_tokens"}), _vidur, timed=False),
    _Format(
        "agent",
        frozenset({"session", "turn", "input_length", "output_length"}),
        _agent,
        timed=False,
    ),
)
