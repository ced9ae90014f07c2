"""`forebay usage` and the ends and notes of `forebay keys new`."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.cli import main
from forebay.gateway.config import load
from forebay.gateway.keys import Keys, digest_of
from forebay.gateway.quota.ledger_redis import RedisBook
from forebay.gateway.quota.ledger_sqlite import SqliteBook
from forebay.gateway.quota.metering import LEDGER_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RedisServer

ROWS: list[dict[str, Any]] = [
    {
        "tenant": "acme",
        "model": "m",
        "day": "2026-11-01",
        "requests": 2,
        "prompt_tokens": 30,
        "cached_tokens": 16,
        "output_tokens": 5,
        "cost": 0.25,
    },
    {
        "tenant": "other",
        "model": "m",
        "day": "2026-11-02",
        "requests": 1,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "output_tokens": 3,
        "cost": 0.0,
    },
]
SUMS = {
    ("acme", "m", 20261101): [2, 30, 16, 5, 250_000_000],
    ("other", "m", 20261102): [1, 7, 0, 3, 0],
}
GOOD = "version: 1\npools: [{name: p, models: [m], endpoints: [{name: e, engine: sim}]}]\n"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    file = tmp_path / "usage.sqlite"
    book = SqliteBook(file)
    book.prepare()

    async def write() -> None:
        await book.write("batch", SUMS)
        await book.close()

    asyncio.run(write())
    return file


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["usage", *arguments]) == 0
    return capsys.readouterr().out


def test_usage_comes_as_json(ledger: Path, capsys: pytest.CaptureFixture[str]):
    said = printed(capsys, "--ledger", str(ledger), "--json")
    assert json.loads(said) == {"rows": ROWS}


def test_usage_comes_as_csv(ledger: Path, capsys: pytest.CaptureFixture[str]):
    said = printed(capsys, "--ledger", str(ledger), "--csv")
    assert list(csv.DictReader(io.StringIO(said))) == [
        {name: str(value) for name, value in row.items()} for row in ROWS
    ]


def test_usage_comes_as_a_table(ledger: Path, capsys: pytest.CaptureFixture[str]):
    assert printed(capsys, "--ledger", str(ledger)).splitlines() == [
        "tenant  model  day         requests  prompt_tokens  cached_tokens  output_tokens     cost",
        "acme    m      2026-11-01         2             30             16              5  0.25000",
        "other   m      2026-11-02         1              7              0              3  0.00000",
    ]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["--tenant", "acme"], ROWS[:1]),
        (["--since", "2026-11-02"], ROWS[1:]),
        (["--tenant", "acme", "--since", "2026-11-02"], []),
        (["--tenant", "nobody"], []),
    ],
)
def test_usage_of_one_tenant_or_from_a_day_on(
    ledger: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    rows: list[dict[str, Any]],
):
    said = printed(capsys, "--ledger", str(ledger), "--json", *arguments)
    assert json.loads(said) == {"rows": rows}


@pytest.mark.parametrize(
    "text",
    ["state: {ledger: usage.sqlite}", f"tenants: [{{name: a, keys: ['{digest_of('fb_x')}']}}]"],
)
def test_a_configuration_says_where_its_ledger_is(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
):
    file = tmp_path / "forebay.yaml"
    file.write_text(f"{GOOD}{text}\n")
    if "ledger" not in text:
        ledger.rename(tmp_path / LEDGER_FILE)
    assert json.loads(printed(capsys, "-c", str(file), "--json")) == {"rows": ROWS}


def test_a_configuration_with_redis_has_its_ledger_there(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    async def write() -> None:
        book = RedisBook(redis_server.url, ["acme", "other"])
        await book.write("batch", SUMS)
        await book.close()

    asyncio.run(write())
    file = tmp_path / "forebay.yaml"
    entries = [f"{{name: {name}, keys: ['{digest_of(name * 2)}']}}" for name in ("acme", "other")]
    file.write_text(
        f"{GOOD}state: {{url: '{redis_server.url}'}}\ntenants: [{', '.join(entries)}]\n"
    )
    assert json.loads(printed(capsys, "-c", str(file), "--json")) == {"rows": ROWS}
    one = printed(capsys, "-c", str(file), "--json", "--tenant", "acme")
    assert json.loads(one) == {"rows": ROWS[:1]}


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, wrong = tmp_path / "forebay.yaml", tmp_path / "wrong"
    file.write_text(f"{GOOD}stat: {{}}\n")
    wrong.write_text("no database at all, whatever its length may be " * 50)
    for arguments, message in (
        (["-c", str(file)], "stat: is no known key; did you mean 'state'?"),
        (["--ledger", str(tmp_path / "none")], "there is no such file"),
        (["--ledger", str(wrong)], "is no usage ledger"),
        (["--admin", "http://127.0.0.1:1"], "cannot be asked"),
    ):
        assert main(["usage", *arguments]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--ledger", "x", "--since", "yesterday"],
        ["--ledger", "x", "--admin", "y"],
        ["--ledger", "x", "--csv", "--json"],
    ],
)
def test_a_wrong_call_is_told(arguments: list[str]):
    assert main(["usage", *arguments]) == 2


class Admin(BaseHTTPRequestHandler):
    """An admin port that wants a key and says what it was asked."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        good = self.headers.get("authorization") == "Bearer s3cret"
        said = {"rows": ROWS} if good else {"error": {"message": "the admin key is wrong"}}
        body = json.dumps(said).encode()
        self.send_response(200 if good else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


def test_a_running_gateway_is_asked_with_its_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    Admin.asked = []
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            monkeypatch.setenv("FOREBAY_ADMIN_KEY", "s3cret")
            arguments = ["--admin", url, "--tenant", "acme", "--since", "2026-11-01", "--json"]
            assert json.loads(printed(capsys, *arguments)) == {"rows": ROWS}
            monkeypatch.delenv("FOREBAY_ADMIN_KEY")
            assert main(["usage", "--admin", url]) == 1
            assert "answered 401: the admin key is wrong" in capsys.readouterr().err
        finally:
            server.shutdown()
            thread.join()
    assert Admin.asked == [
        "/admin/v1/usage?tenant=acme&since=2026-11-01",
        "/admin/v1/usage",
    ]


def test_a_new_key_may_have_an_end_and_a_note(capsys: pytest.CaptureFixture[str]):
    assert main(["keys", "new", "acme", "--expires", "2999-12-31", "--note", 'ci: "x", y']) == 0
    told = capsys.readouterr().out
    shown = next(word for word in told.split() if word.startswith("fb_"))
    config = load.read(f"{GOOD}tenants:\n{told.partition('configuration:')[2]}")
    (key,) = config.tenants[0].keys
    assert (key.expires, key.note) == (32503593600, 'ci: "x", y')
    grant = Keys(config.tenants, clock=lambda: 0.0).find(None, shown.encode())
    assert grant is not None


@pytest.mark.parametrize(
    "arguments",
    [["--expires", "soon"], ["--expires", "2020-01-01"], ["--note", "a\nb"], ["--note", "x" * 201]],
)
def test_an_end_or_a_note_that_is_none_is_refused(arguments: list[str]):
    assert main(["keys", "new", "acme", *arguments]) == 2


def test_a_tenant_without_any_usage_is_told_of_with_those_that_have_some(
    ledger: Path, capsys: pytest.CaptureFixture[str]
):
    for name, hint in (("acm", "; did you mean 'acme'?"), ("zzz", "; there is of: acme, other")):
        assert main(["usage", "--ledger", str(ledger), "--tenant", name]) == 0
        told = f"forebay usage: no usage of tenant '{name}'{hint}\n"
        assert capsys.readouterr().err == told
    arguments = ["--ledger", str(ledger), "--tenant", "acme", "--since", "2027-01-01"]
    assert main(["usage", *arguments]) == 0
    assert capsys.readouterr().err == ""
