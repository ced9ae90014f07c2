"""Tokens of an issuer: a local key server, real signatures, whole requests."""

from __future__ import annotations

import asyncio
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from forebay.gateway import tokens
from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from tests.journeys.conftest import Gateway, Go, Kit

ISSUER, AUDIENCE = "https://issuer.example", "forebay"
KEY = "fb_a_" + "a" * 43
FIRST = rsa.generate_private_key(65537, 2048)
SECOND = ec.generate_private_key(ec.SECP256R1())
FOREIGN = rsa.generate_private_key(65537, 2048)


def public(key: Any, kid: str) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


class Issuer:
    """Serves a key set, and counts who asks for it."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.broken = False
        self.held = Event()
        self.held.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.held.wait(10)
                self.send_response(500 if issuer.broken else 200)
                self.end_headers()
                self.wfile.write(json.dumps({"keys": issuer.keys}).encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/keys"


def token(key: Any = FIRST, kid: str | None = "first", /, **claims: Any) -> str:
    said = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "tenant": "acme",
        "exp": time.time() + 600,
        **claims,
    }
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    headers = None if kid is None else {"kid": kid}
    kept = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers=headers)


def settings(kit: Kit, issuer: Issuer, **section: Any) -> Any:
    said = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.url, **section}
    tenants = [{"name": "acme"}, {"name": "other", "keys": [digest_of(KEY)]}]
    return kit.config(auth={"jwt": said}, tenants=tenants)


def request(kit: Kit, shown: str) -> bytes:
    return kit.post(kit.chat(), headers=f"authorization: Bearer {shown}\r\n")


async def ask(gateway: Gateway, kit: Kit, shown: str) -> tuple[int, str]:
    answer = await gateway.ask(request(kit, shown))
    return answer.status, answer.json.get("error", {}).get("code", "")


def test_a_token_is_verified_once_and_then_known(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            shown = token()
            async with await gateway.caller() as caller:
                for _ in range(5):
                    caller.send(request(kit, shown))
                    assert (await caller.answer()).status == 200
            assert {outcome.tenant for outcome in gateway.outcomes} == {"acme"}
            known = gateway.process._tokens
            assert known is not None
            assert len(known._known) == 1
            assert await ask(gateway, kit, KEY) == (200, "")
            assert gateway.outcomes[-1].tenant == "other"
            models = await gateway.ask(
                kit.get("/v1/models", f"authorization: Bearer {token()}\r\n")
            )
            assert models.status == 200
            assert issuer.asked == 1

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


BAD: dict[str, Any] = {
    "signed by somebody else": lambda: token(FOREIGN),
    "no such tenant": lambda: token(tenant="nobody"),
    "no tenant": lambda: token(tenant=None),
    "a tenant that is no text": lambda: token(tenant=["acme"]),
    "another issuer": lambda: token(iss="https://evil.example"),
    "another audience": lambda: token(aud="else"),
    "no audience": lambda: token(aud=None),
    "no end": lambda: token(exp=None),
    "over": lambda: token(exp=time.time() - 1),
    "not yet": lambda: token(nbf=time.time() + 600),
    "an unknown key": lambda: token(FOREIGN, "made-up"),
    "none": lambda: jwt.encode({"tenant": "acme"}, "", "none", headers={"kid": "first"}),
    "a shared secret": lambda: jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "tenant": "acme", "exp": time.time() + 9},
        "x" * 32,
        "HS256",
        headers={"kid": "first"},
    ),
    "cut": lambda: token()[:-20],
    "changed": lambda: token().replace(".", ".A", 1),
    "not a token inside": lambda: "eyJ.eyJ.eyJ",
    "more parts": lambda: token() + ".x",
    "longer than any": lambda: "eyJ" + "a" * tokens.LONGEST + ".b.c",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_lets_nobody_in(go: Go, kit: Kit, kind: str):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            shown = BAD[kind]()
            for _ in range(2):
                answer = await gateway.ask(request(kit, shown))
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert shown not in answer.body.decode()
            assert all(shown not in line for line in gateway.records.lines)

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_what_is_no_token_by_its_looks_is_never_verified(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            for shown in ("fb_x_" + "x" * 43, "abc.def.ghi", "eyJabc", "eyJ.b", "x" * 9000):
                assert await ask(gateway, kit, shown) == (401, "invalid_api_key")
            known = gateway.process._tokens
            assert known is not None
            assert (known._known, known._waiting) == ({}, {})

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_new_key_of_the_issuer_is_read_when_a_token_names_it(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            assert await ask(gateway, kit, token()) == (200, "")
            issuer.keys = [public(SECOND, "second")]
            known = gateway.process._tokens
            assert known is not None
            known._tried -= tokens.UNKNOWN_S  # a minute goes by
            assert await ask(gateway, kit, token(SECOND, "second")) == (200, "")
            assert issuer.asked == 2
            assert await ask(gateway, kit, token()) == (401, "invalid_api_key")
            assert await ask(gateway, kit, token(SECOND, "third")) == (401, "invalid_api_key")
            assert issuer.asked == 2  # not again within the minute

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_key_that_the_issuer_took_back_is_good_for_nothing(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway, await gateway.caller() as caller:
            shown = token()
            for _ in range(2):  # the second time its head is known
                caller.send(request(kit, shown))
                assert (await caller.answer()).status == 200
            issuer.keys = [public(SECOND, "second")]
            known = gateway.process._tokens
            assert known is not None
            await known._read_once()
            caller.send(request(kit, shown))
            assert (await caller.answer()).status == 401

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_token_ends_when_it_says(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            now = time.time()
            known = gateway.process._tokens
            assert known is not None
            shown = token(exp=now + 100)
            assert await ask(gateway, kit, shown) == (200, "")
            known._clock = lambda: now + 100
            assert await ask(gateway, kit, shown) == (401, "invalid_api_key")

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_requests_with_one_new_token_wait_together_and_may_leave(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        issuer.held.clear()
        async with kit.running(settings(kit, issuer)) as gateway:
            shown = token()
            callers = [await gateway.caller() for _ in range(5)]
            for caller in callers:
                caller.send(request(kit, shown))
            known = gateway.process._tokens
            assert known is not None
            await kit.until(lambda: [len(w) for w in known._waiting.values()] == [5])
            callers[0].leave()
            assert await ask(gateway, kit, KEY) == (200, "")  # nobody else is held up
            issuer.held.set()
            answers = [await caller.answer() for caller in callers[1:]]
            assert {answer.status for answer in answers} == {200}
            assert len(gateway.outcomes) == 5
            for caller in callers:
                caller.leave()

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_too_many_new_tokens_are_told_to_come_back(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        issuer.held.clear()
        async with kit.running(settings(kit, issuer)) as gateway:
            known = gateway.process._tokens
            assert known is not None
            told: list[object] = []
            for i in range(tokens.MOST_WAITING):
                known.verify(f"eyJ{i}.b.c".encode(), told.append)
            answer = await gateway.ask(request(kit, token()))
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            issuer.held.set()
            await kit.until(lambda: len(told) == tokens.MOST_WAITING)

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_an_issuer_that_is_away_is_said_so_and_tried_again(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        issuer.broken = True
        async with kit.running(settings(kit, issuer)) as gateway:
            shown = token()
            assert await ask(gateway, kit, shown) == (503, "issuer_unavailable")
            assert await ask(gateway, kit, KEY) == (200, "")
            issuer.broken = False
            known = gateway.process._tokens
            assert known is not None
            known._tried -= tokens.UNKNOWN_S
            assert await ask(gateway, kit, shown) == (200, "")
            told = [line for line in gateway.records.lines if "issuer" in line]
            assert len(told) == 2

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_reload_may_take_a_tenant_or_the_issuer_away(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        config = settings(kit, issuer)
        async with kit.running(config) as gateway, await gateway.caller() as caller:
            shown = token()

            async def status() -> int:
                caller.send(request(kit, shown))
                return (await caller.answer()).status

            assert [await status(), await status()] == [200, 200]
            gone = config.model_copy(update={"tenants": config.tenants[1:]})
            gateway.process.apply(gone)
            assert await status() == 401
            gateway.process.apply(config)
            assert await status() == 200
            assert issuer.asked == 1
            gateway.process.apply(kit.config(tenants=[{"name": "o", "keys": [digest_of(KEY)]}]))
            assert await status() == 401
            assert gateway.process._tokens is None

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_token_without_a_key_name_is_tried_with_the_only_key(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        claim = settings(kit, issuer, tenant_claim="org", algorithms=["ES256"])
        async with kit.running(claim) as gateway:
            assert await ask(gateway, kit, token(SECOND, None, org="acme")) == (200, "")
            assert await ask(gateway, kit, token(SECOND, None)) == (401, "invalid_api_key")
            assert await ask(gateway, kit, token(FIRST, None, org="acme")) == (
                401,
                "invalid_api_key",
            )

    with Issuer(public(SECOND, "second"), {"kty": "oct", "k": "eA"}, {"kty": "new"}) as issuer:
        go(main(issuer))


def test_a_reload_leaves_nobody_waiting_for_a_token(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        issuer.held.clear()
        async with kit.running(settings(kit, issuer)) as gateway:
            whole, slow = await gateway.caller(), await gateway.caller()
            body = request(kit, token(exp=time.time() + 99))
            whole.send(request(kit, token()))
            slow.send(body[:-5])
            known = gateway.process._tokens
            assert known is not None
            await kit.until(lambda: len(known._waiting) == 2)
            gateway.process.apply(kit.config(tenants=[{"name": "o", "keys": [digest_of(KEY)]}]))
            assert (await whole.answer()).status == 503
            slow.send(body[-5:])
            assert (await slow.answer()).status == 503
            issuer.held.set()
            whole.leave()
            slow.leave()

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_key_without_an_algorithm_is_used_with_those_that_are_accepted(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer, algorithms=["RS512"])) as gateway:
            for algorithm, status in (("RS512", 200), ("RS256", 401)):
                claims = {"iss": ISSUER, "aud": AUDIENCE, "tenant": "acme", "exp": 4102444800}
                shown = jwt.encode(claims, FIRST, algorithm, headers={"kid": "first"})
                assert (await ask(gateway, kit, shown))[0] == status
            fixed = jwt.encode(claims, SECOND, "ES256", headers={"kid": "fixed"})
            assert (await ask(gateway, kit, fixed))[0] == 401

    fixed = {**public(FIRST, "fixed"), "alg": "RS256"}
    bare = {k: v for k, v in public(FIRST, "first").items() if k != "alg"}
    with Issuer(bare, fixed) as issuer:
        go(main(issuer))


def test_a_body_is_not_read_on_once_its_token_is_refused(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway, await gateway.caller() as caller:
            size = 16 << 20
            head = request(kit, token(FOREIGN)).partition(b"content-length")[0]
            caller.send(head + b"content-length: %d\r\n\r\n" % size + b"x" * 1000)
            known = gateway.process._tokens
            assert known is not None
            await kit.until(lambda: known._known)
            caller.send(b"x" * (1 << 20))
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (401, "close")
            caller.leave()

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_good_tokens_body_may_take_its_time(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway, await gateway.caller() as caller:
            whole = request(kit, token())
            caller.send(whole[:-5])
            known = gateway.process._tokens
            assert known is not None
            await kit.until(lambda: known._known)
            caller.send(whole[-5:])
            assert (await caller.answer()).status == 200

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_made_up_tokens_do_not_push_known_heads_out(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            for i in range(5):
                assert (await ask(gateway, kit, f"eyJ{i}.b.c"))[0] == 401
            assert len(gateway.process.connections.heads) == 0
            assert await ask(gateway, kit, KEY) == (200, "")
            assert len(gateway.process.connections.heads) == 1

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))


def test_a_tenant_is_paused_with_a_token_too(go: Go, kit: Kit):
    async def main(issuer: Issuer) -> None:
        async with kit.running(settings(kit, issuer)) as gateway:
            gateway.app.paused.add("acme")
            shown = token()
            assert await ask(gateway, kit, shown) == (403, "tenant_paused")
            assert await ask(gateway, kit, shown) == (403, "tenant_paused")
            await asyncio.sleep(0)

    with Issuer(public(FIRST, "first")) as issuer:
        go(main(issuer))
