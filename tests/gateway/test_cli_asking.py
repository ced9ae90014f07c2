"""What `ab` and `usage` say when the admin port cannot be asked, or is another one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import httpx
import pytest

from forebay.gateway.cli import main
from forebay.gateway.commands.asking import why_unreachable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@contextmanager
def answering(status: int, body: bytes) -> Generator[str]:
    """Serve one answer to whatever is asked, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Yield an address that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


COMMANDS = (["ab", "status"], ["usage"])


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_there_is_told_with_what_to_look_at(
    nobody: str, capsys: pytest.CaptureFixture[str], command: list[str]
):
    assert main([*command, "--admin", nobody]) == 1
    assert capsys.readouterr().err == (
        f"forebay: {nobody}: cannot be asked: connection refused; is the gateway running, with an "
        "admin port there (server.admin.port, 8081 unless set)? --admin URL names another\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("address", ["127.0.0.1:8081", "localhost", "http://", "ftp://a"])
def test_an_address_without_scheme_is_told_with_how_to_write_it(
    capsys: pytest.CaptureFixture[str], command: list[str], address: str
):
    assert main([*command, "--admin", address]) == 1
    told = f"forebay: --admin '{address}' is no http address; write http://HOST:PORT\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            b'{"error": {"message": "there is no route \'/x\'", "code": "not_found"}}',
            "there is no route '/x'",
        ),
        (b"<html>no</html>", "no reason told"),
        (b'{"detail": "Not Found"}', "no reason told"),
        (b"[]", "no reason told"),
    ],
)
def test_another_port_is_suspected_where_another_server_answers(
    capsys: pytest.CaptureFixture[str], command: list[str], body: bytes, reason: str
):
    with answering(404, body) as address:
        assert main([*command, "--admin", address]) == 1
    assert capsys.readouterr().err == (
        f"forebay: {address}: answered 404: {reason}; is this the admin port "
        "(server.admin.port), not the callers'?\n"
    )


def test_a_wrong_key_is_told_with_where_it_belongs(capsys: pytest.CaptureFixture[str]):
    said = b'{"error": {"message": "the admin key is missing or wrong", "code": null}}'
    with answering(401, said) as address:
        assert main(["ab", "status", "--admin", address]) == 1
    assert capsys.readouterr().err == (
        f"forebay: {address}: answered 401: the admin key is missing or wrong; "
        "FOREBAY_ADMIN_KEY must hold that of server.admin\n"
    )


@pytest.mark.parametrize("key", ["", "  ", "secret\n"])
def test_an_empty_key_is_none_and_white_space_around_one_is_not_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
):
    monkeypatch.setenv("FOREBAY_ADMIN_KEY", key)
    with answering(200, b'{"experiments": []}') as address:
        assert main(["ab", "status", "--admin", address]) == 0
    assert capsys.readouterr().err == ""


def test_a_key_that_no_header_holds_is_told_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FOREBAY_ADMIN_KEY", "sec\nret")
    assert main(["ab", "status"]) == 1
    assert capsys.readouterr().err == (
        "forebay: FOREBAY_ADMIN_KEY holds signs that no key has; set it to that of server.admin\n"
    )


def test_a_misspelt_pool_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    with answering(200, b'{"pools": [{"name": "chat", "endpoints": []}]}') as address:
        assert main(["prefix", "warm", "chatt", "--admin", address]) == 1
        assert main(["prefix", "warm", "x", "--admin", address]) == 1
    assert capsys.readouterr().err == (
        f"forebay: {address}: there is no pool 'chatt'; did you mean 'chat'?\n"
        f"forebay: {address}: there is no pool 'x'; there are: chat\n"
    )


def test_what_is_no_json_is_no_answer(capsys: pytest.CaptureFixture[str]):
    with answering(200, b"<html>welcome</html>") as address:
        assert main(["ab", "status", "--admin", address]) == 1
        assert main(["usage", "--admin", address]) == 1
    told = f"forebay: {address}: answered something else; is this the admin port?\n"
    assert capsys.readouterr().err == told * 2


def test_a_failure_without_a_system_error_is_told_in_words():
    assert why_unreachable(httpx.ReadTimeout("")) == "read timeout"

    async def fail() -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            await http.get("http://nosuch.invalid")

    with pytest.raises(httpx.ConnectError) as caught:
        asyncio.run(fail())
    assert "ConnectError" not in why_unreachable(caught.value)
    assert why_unreachable(caught.value)
