"""Tokens of an OpenID Connect issuer (JWT): verified off the loop, once each, then remembered.

A token that was verified is a dict access until it expires. One that has not been seen goes to a
thread, one after the other, while its request waits as a `Verifying`; what is no JWT by its looks
never gets there. The issuer's public keys are read every ten minutes, and when a token names one
that is not known: at most once a minute, so that made-up names cost the issuer nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from forebay.policies.contracts import ConfigError, Overloaded, Rejected, Unauthorized

from .extras import needs
from .standing_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay.gateway.config.sections import Tenant
    from forebay.gateway.config.tenancy import Jwt

    from .keys import Grant
    from .messages import Guest, Message, Refusal, Responder

    Done = Callable[[Grant | Rejected], None]

logger = logging.getLogger(__name__)

LONGEST = 8192
ROTATE_S = 600.0
"""Between readings of the issuer's keys."""
UNKNOWN_S = 60.0
"""Least time between readings that an unknown key asks for."""
REFUSED_S = 10.0
"""How long a bad token is remembered as such."""
MOST_KNOWN = 10_000
MOST_WAITING = 256
LEEWAY_S = 10.0
"""How far the issuer's clock may be ahead of ours."""
_LARGEST_JWKS = 1 << 20


class PublicKey(NamedTuple):
    """One key of the issuer; `algorithm` is the only one it may be used with, where it says so."""

    key: Any
    algorithm: str | None


class Unverified:
    """A token that looks like a JWT and has yet to be verified."""

    __slots__ = ("_token", "_tokens")

    def __init__(self, tokens: Tokens, token: bytes) -> None:
        self._tokens = tokens
        self._token = token

    def verify(self, done: Done) -> None:
        """Have it verified; `done` is called on the loop. Raises Overloaded."""
        self._tokens.verify(self._token, done)


class Host(Protocol):
    """What a waiting request asks of the application."""

    def refusal_of(self, error: Rejected, message: Message) -> Refusal:
        """Word an answer to a request that is not read to its end."""
        ...

    def admitted(self, grant: Grant, message: Message, responder: Responder) -> Guest | None:
        """Answer a request whose token has been verified."""
        ...

    def turn_away(self, error: Rejected, message: Message, responder: Responder) -> None:
        """Answer a request with an error."""
        ...


class Verifying:
    """A request whose token is being verified: its tenant until that is known.

    That begins with the head, so that a body is not read for nothing. A request that is whole
    before has a stand-in for its guest until then.
    """

    __slots__ = ("_host", "_message", "_responder", "_said", "_stand_in")

    def __init__(self, host: Host, message: Message) -> None:
        self._host = host
        self._message = message
        self._responder: Responder | None = None
        self._said: Grant | Rejected | None = None
        self._stand_in = StandIn()

    def begin(self, responder: Responder) -> Guest | None:
        """Answer the request, which is whole now; at once or when its token is verified."""
        self._responder = responder
        return self._stand_in if self._said is None else self._answer(self._said, responder)

    def verified(self, said: Grant | Rejected) -> None:
        """Let the request in, or turn it away."""
        self._said = said
        responder, message = self._responder, self._message
        if responder is None:
            if isinstance(said, Rejected) and message.refusal is None:
                message.refusal = self._host.refusal_of(said, message)
        elif not self._stand_in.left:
            self._stand_in.give_way(self._answer(said, responder), responder)

    def _answer(self, said: Grant | Rejected, responder: Responder) -> Guest | None:
        if isinstance(said, Rejected):
            self._host.turn_away(said, self._message, responder)
            return None
        return self._host.admitted(said, self._message, responder)


class Tokens:
    """The tokens of one issuer. For the loop's thread."""

    def __init__(
        self,
        section: Jwt,
        *,
        rotated: Callable[[], None],
        fetch: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`rotated` is told when a key is gone; `fetch` reads an address, in a thread.

        Raises ConfigError where the library is missing.
        """
        try:
            import jwt  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - looked for, and used in a thread
        except ImportError as error:
            raise ConfigError(needs("auth.jwt", "oidc")) from error
        self.section = section
        self._fetch = fetch or _fetch
        self._rotated = rotated
        self._clock = clock
        self._tenants: Mapping[str, Tenant] = {}
        self._known: dict[bytes, tuple[Grant | None, float]] = {}
        self._waiting: dict[bytes, list[Done]] = {}
        self._keys: dict[str, PublicKey] = {}
        self._tried = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-jwt")
        self._ok = True
        self._rotating = False

    def configure(self, tenants: Iterable[Tenant]) -> None:
        """Take a configuration's tenants; what was verified is verified anew.

        The first time, begin to read the issuer's keys.
        """
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._known.clear()
        if not self._rotating:
            self._rotating = True
            self._keep(self._rotate())

    async def close(self) -> None:
        """Stop."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for digest in tuple(self._waiting):  # a task that was cancelled before it began tells none
            self._answer(digest, _not_now())
        self._thread.shutdown(wait=False)

    # -- finding ---------------------------------------------------------------------------------

    def find(self, token: bytes) -> Grant | Unverified | None:
        """Return whose token it is, that nobody knows yet, or None: it is none, or a bad one."""
        if len(token) > LONGEST or not token.startswith(b"eyJ") or token.count(b".") != 2:
            return None
        known = self._known.get(sha256(token).digest())
        if known is not None and known[1] > self._clock():
            return known[0]
        return Unverified(self, token)

    def verify(self, token: bytes, done: Done) -> None:
        """Have a token verified and `done` told. Raises Overloaded when too many wait."""
        digest = sha256(token).digest()
        waiting = self._waiting.get(digest)
        if waiting is not None:
            waiting.append(done)
            return
        if len(self._waiting) >= MOST_WAITING:
            raise Overloaded("too many new tokens wait to be verified; try again", retry_after=1.0)
        self._waiting[digest] = [done]
        self._keep(self._judge(digest, token))

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- verifying -------------------------------------------------------------------------------

    async def _judge(self, digest: bytes, token: bytes) -> None:
        said: Grant | Rejected = _not_now()
        try:
            said = await self._verified(token)
        except Exception:
            logger.exception("token could not be verified")
        finally:  # also when a reload has cancelled this: nobody is left waiting
            self._answer(digest, said)

    def _answer(self, digest: bytes, said: Grant | Rejected) -> None:
        if isinstance(said, Unauthorized):
            self._remember(digest, None, self._clock() + REFUSED_S)
        elif not isinstance(said, Rejected):
            self._remember(digest, said, said.until)
        for done in self._waiting.pop(digest, []):
            try:
                done(said)
            except Exception:
                logger.exception("request failed")

    async def _verified(self, token: bytes) -> Grant | Rejected:
        for _ in range(2):
            claims = await self._in_thread(_claims, token, dict(self._keys), self.section)
            if claims is not None:
                return self._grant(claims) or _refused()
            # Signed with a key that is not known: the issuer may have a new one.
            if not await self._read_for_unknown():
                break
        if not self._keys:
            text = "the issuer's keys cannot be read; try again later"
            return Overloaded(text, status=503, code="issuer_unavailable", retry_after=5.0)
        return _refused()

    async def _in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)

    def _grant(self, claims: Mapping[str, Any]) -> Grant | None:
        from .keys import Grant  # noqa: PLC0415 - keys knows tokens

        name = claims.get(self.section.tenant_claim)
        tenant = self._tenants.get(name) if isinstance(name, str) else None
        until = claims.get("exp")
        if tenant is None or not isinstance(until, int | float) or until <= self._clock():
            return None
        return Grant(tenant, float(until))

    def _remember(self, digest: bytes, grant: Grant | None, until: float) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[digest] = (grant, until)

    # -- the issuer's keys -----------------------------------------------------------------------

    async def _rotate(self) -> None:
        while True:
            await self._read_once()
            await asyncio.sleep(ROTATE_S if self._ok else UNKNOWN_S)

    async def _read_for_unknown(self) -> bool:
        """Read the keys if that was not tried just now; True when they have been read."""
        if self._reading is None and asyncio.get_running_loop().time() - self._tried < UNKNOWN_S:
            return False
        await self._read_once()
        return self._ok

    async def _read_once(self) -> None:
        """Read the keys; whoever comes while they are being read waits for that."""
        if self._reading is None:
            self._tried = asyncio.get_running_loop().time()
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._tasks.add(self._reading)
            self._reading.add_done_callback(self._tasks.discard)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            content = await asyncio.to_thread(self._fetch, self.section.jwks_url)
            keys = await self._in_thread(_public_keys, content)
        except Exception as error:  # noqa: BLE001 - whatever an issuer may answer
            self._tell(ok=False, why=type(error).__name__)
        else:
            self._tell(ok=True, why="")
            gone = self._keys.keys() - keys.keys()
            self._keys = keys
            if gone:
                self._known.clear()
                self._rotated()
        finally:
            self._reading = None

    def _tell(self, *, ok: bool, why: str) -> None:
        if ok != self._ok:
            if ok:
                logger.info("issuer's keys are read again", extra={"url": self.section.jwks_url})
            else:
                told = {"url": self.section.jwks_url, "reason": why}
                logger.warning("issuer's keys cannot be read", extra=told)
        self._ok = ok


def _not_now() -> Overloaded:
    return Overloaded("tokens cannot be verified now; try again", status=503, retry_after=1.0)


def _refused() -> Unauthorized:
    return Unauthorized(
        "the token is not valid here: its signature, issuer, audience, time or tenant"
    )


# -- in threads ----------------------------------------------------------------------------------


def _fetch(url: str) -> bytes:
    import httpx  # noqa: PLC0415 - takes 100 ms, and few need it

    answer = httpx.get(url, timeout=5.0, follow_redirects=False, trust_env=False)
    return answer.raise_for_status().content


def _claims(token: bytes, keys: Mapping[str, PublicKey], section: Jwt) -> dict[str, Any] | None:
    """Return a token's claims, none of them for a bad one; None when its key is not known."""
    import jwt  # noqa: PLC0415 - takes 60 ms, and few need it

    try:
        header = jwt.get_unverified_header(token)
        kid, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in section.algorithms:
            return {}
        key = next(iter(keys.values())) if kid is None and len(keys) == 1 else keys.get(str(kid))
        if key is None:
            return None
        if key.algorithm is not None and key.algorithm != algorithm:
            return {}
        return jwt.decode(
            token,
            key=key.key,
            algorithms=[algorithm],
            issuer=section.issuer,
            audience=section.audience,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError):
        return {}


def _public_keys(content: bytes) -> dict[str, PublicKey]:
    """Read a JWKS; what is no signing key of a known kind is passed over."""
    import msgspec  # noqa: PLC0415 - beside jwt, in the thread
    from jwt import PyJWK, PyJWTError  # noqa: PLC0415 - likewise

    if len(content) > _LARGEST_JWKS:
        raise ValueError("the key set is too long")
    listed: Any = msgspec.json.decode(content)["keys"]
    keys: dict[str, PublicKey] = {}
    for i, each in enumerate(listed):
        if not isinstance(each, dict):
            continue
        one = cast("dict[str, Any]", each)
        if one.get("use", "sig") != "sig" or one.get("kty") == "oct":
            continue
        try:
            keys[str(one.get("kid", i))] = PublicKey(PyJWK.from_dict(one).key, one.get("alg"))
        except PyJWTError:
            continue
    return keys
