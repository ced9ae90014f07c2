"""What one call has reserved, in a shared store or in this replica's share of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.policies.contracts import Overloaded, Rejected

from .store import Assert, Reply, Reserved, Settle
from .tariff import NOTHING, charge_of, headers_of

if TYPE_CHECKING:
    from forebay.gateway.meter import Asking, Headers
    from forebay.policies.contracts import Outcome, Request
    from forebay.policies.quota import Estimate

    from .shared import SharedMeter
    from .tariff import Tariff

logger = logging.getLogger(__name__)

_ASKED, _HELD, _HERE, _OVER = range(4)


class SharedLease:
    """What one call has reserved, there or here."""

    __slots__ = (
        "_meter",
        "_prompt",
        "_state",
        "asked",
        "asking",
        "attempt",
        "day",
        "id",
        "pending",
        "requests",
        "taken",
        "tariff",
        "tokens",
        "uncertain",
    )

    def __init__(
        self, meter: SharedMeter, tariff: Tariff, request: Request, asked: Estimate, asking: Asking
    ) -> None:
        self._meter = meter
        self._prompt = request.prompt_tokens_estimate
        self._state = _ASKED
        self.asked = asked
        self.asking = asking
        self.attempt = 0
        """At catching up: the last one in which the store was told of it."""
        self.day = 0
        self.id = request.id
        self.pending = True
        self.requests = self.tokens = 0
        self.tariff = tariff
        self.taken = 0.0
        self.uncertain = False
        """The store may hold it without our knowing."""

    # -- what becomes of it ----------------------------------------------------------------------

    def answered(self, reply: Reply | None) -> None:
        """Take the store's answer to the reservation; None: there was none."""
        try:
            self._take(reply)
        except Exception:
            logger.exception("answering a call failed")
            self.asking.refused(
                Overloaded("the call could not be counted; send it again", status=503)
            )

    def _take(self, reply: Reply | None) -> None:
        over, self.pending = self._state is _OVER, False
        if reply is None:
            self.uncertain = True
            self._without_answer(over=over)
            return
        assert isinstance(reply, Reserved)
        self.requests, self.tokens = reply.requests, reply.tokens
        if not reply.granted:
            if not over:
                self._state = _OVER
                self.asking.refused(self._meter.refusal(self, reply))
        elif over:
            self._meter.tell(self.tariff, settle_of(self.id, NOTHING))
        else:
            self._hold(_HELD)
            self.asking.granted()

    def _without_answer(self, *, over: bool) -> None:
        if over:
            self._meter.owe(self.tariff, settle_of(self.id, NOTHING))
            return
        try:
            self.take_here()
        except Rejected as error:
            self._state = _OVER
            self._meter.owe(self.tariff, settle_of(self.id, NOTHING))
            self.asking.refused(error)
        else:
            self.asking.granted()

    def take_here(self) -> None:
        """Reserve in this replica's share. Raises Rejected."""
        self._meter.reserve_here(self)
        self.pending = False
        self._hold(_HERE)

    def _hold(self, state: int) -> None:
        self._state = state
        self.taken = self._meter.now()
        self.day = self._meter.today(self.tariff).day
        self._meter.live[self.id] = self

    @property
    def held(self) -> bool:
        """Whether the store holds it, as far as we know."""
        return self._state is _HELD

    def told(self, attempt: int) -> None:
        """Take note that the store holds it."""
        self.attempt = attempt
        if self._state is _HERE:
            self._state = _HELD

    def assertion(self, now: float) -> Assert:
        """Word it for a store that may have missed it."""
        self.uncertain = True
        asked = self.asked
        return Assert(self.id, now - self.taken, self.day, asked.requests, asked.tokens, asked.nano)

    # -- meter.Lease -----------------------------------------------------------------------------

    def settle(self, outcome: Outcome) -> None:
        """See Lease."""
        state, self._state = self._state, _OVER
        if state in (_OVER, _ASKED):
            return
        meter = self._meter
        del meter.live[self.id]
        charge = charge_of(outcome, self._prompt, self.tariff.prices)
        used = NOTHING if charge is None else charge.used
        if charge is not None:
            meter.ledger.add(outcome.tenant, outcome.model, self.day, charge)
        if state is _HELD:
            meter.here.forget(self, meter.today(self.tariff))
            meter.tell(self.tariff, settle_of(self.id, used))
        else:
            meter.here.settle(self, used, meter.today(self.tariff))
            if self.uncertain:
                meter.owe(self.tariff, settle_of(self.id, NOTHING))

    def headers(self) -> Headers:
        """See Lease."""
        return headers_of(self.tariff.caps, self.requests, self.tokens)


def settle_of(lease: str, used: Estimate) -> Settle:
    """Word a settlement."""
    return Settle(lease, used.requests, used.tokens, used.nano)


class FreeLease:
    """That of a tenant without limits: nothing is asked of the store, only usage is kept."""

    __slots__ = ("_day", "_meter", "_prompt", "_tariff")

    pending = False

    def __init__(self, meter: SharedMeter, tariff: Tariff, request: Request) -> None:
        self._day = meter.today(tariff).day
        self._meter = meter
        self._prompt = request.prompt_tokens_estimate
        self._tariff = tariff

    def settle(self, outcome: Outcome) -> None:
        """See Lease."""
        charge = charge_of(outcome, self._prompt, self._tariff.prices)
        if charge is not None:
            self._meter.ledger.add(outcome.tenant, outcome.model, self._day, charge)

    def headers(self) -> Headers:
        """See Lease."""
        return ()
