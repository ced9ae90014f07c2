"""One call, from its body to its settlement: queue, placement, engine, bytes, and back.

Everything here is a callback on the event loop. The caller's connection tells a relay that the
caller left or is slow (`messages.Guest`), the pool says that its turn has come or its deadline
(`placed`, `expired`), the attempt that is being made tells what became of it (`attempt`), and
`check` is called a few times a second for the time limits. `scheduler.lifecycle` is the table of
what may follow what.

A relay is settled exactly once, by `settle`, which is synchronous: the place is free, the memory
given back and the outcome written before anything else can happen. Retries are decided in one
place, `failed`, and only while nothing has gone to the caller; `recourse` says where to.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.adapters.base import Verdict
from forebay.policies.contracts import (
    DeadlineExpired,
    Finish,
    ForebayError,
    InvalidRequest,
    Rejected,
)
from forebay.scheduler.lifecycle import Event, State, advance
from forebay.scheduler.retry import again

from .answer_head import answer_head
from .attempt import Attempt
from .dialects import dialect_of
from .failing import final, last_event, not_started, shutting_down, told
from .intake import outcome_of
from .places import ROLLED_BACK, reason_of
from .recourse import Recourse
from .time_limits import hold_start, hold_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Placement, Request

    from .app import App
    from .intake import Inbound
    from .messages import Responder
    from .meter import Lease

logger = logging.getLogger(__name__)

_JSON = b"application/json"
# Reading an enum's member costs 0.1 us in Python 3.11, and a call reads thirty of them.
_RECEIVING, _QUEUED, _STREAMING = State.RECEIVING, State.QUEUED, State.STREAMING
_UNSEEN = frozenset({State.PLACED, State.HELD})
"""Sent, and the caller has seen nothing of an answer."""
_QUEUE, _PLACE, _HOLD, _STREAM = Event.QUEUE, Event.PLACE, Event.HOLD, Event.STREAM


class Relay:
    """Carries one call."""

    __slots__ = (
        "_app",
        "_attempt",
        "_dialect",
        "_recourse",
        "_responder",
        "_settled",
        "_state",
        "inbound",
        "lease",
        "outcome",
        "request",
    )

    def __init__(self, app: App, inbound: Inbound, responder: Responder) -> None:
        self._app = app
        self.inbound = inbound
        """What was read of the call."""
        self._responder = responder
        self._state = _RECEIVING
        self._dialect = dialect_of(inbound.request.route)
        self._recourse = Recourse(app, inbound)
        self._attempt: Attempt | None = None
        """The one that is being made; None while it waits."""
        self._settled = False
        self.lease: Lease
        """Set before anything is told of the call: by `App`, of the meter."""
        self.request = inbound.request
        self.outcome = outcome_of(inbound)

    # -- the way down ----------------------------------------------------------------------------

    def granted(self) -> None:
        """Queue the call, or send it on at once."""
        now = self._app.now()
        try:
            self.inbound.pool.budget.request(now)
            self._app.active.add(self)
            self._submit(self.request, now)
        except Exception as error:  # noqa: BLE001 - a place or a lease may be held already
            self.broke(error)

    def _submit(self, request: Request, now: float) -> None:
        self.request = request
        try:
            self.inbound.pool.submit(self, request, now)
        except Rejected as error:
            if not self._move(request, reason_of(error), now):
                self.reject(error)

    def revised(self, request: Request) -> None:
        """Take a better estimate of how long the answer will be; it waits on."""
        self.request = request
        self.outcome.predicted_tokens = request.output_tokens_estimate

    def queued(self) -> None:
        """Wait until some endpoint has room."""
        if self._state is not _QUEUED:  # where a retry stands already
            self._state = advance(self._state, _QUEUE)

    def placed(self, placement: Placement, now: float) -> None:
        """Send the call to the endpoint that was chosen for it. Raises nothing.

        Others may be next in line, and whose fault it was would not be told to them.
        """
        try:
            self._send(placement, now)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this call's alone
            self.broke(error)
            pool = self.inbound.pool
            if pool.dispatcher.holds(placement):
                pool.release(placement, now)

    def _send(self, placement: Placement, now: float) -> None:
        self._state = advance(self._state, _PLACE)
        inbound, outcome = self.inbound, self.outcome
        outcome.endpoint = placement.endpoint
        outcome.attempts += 1
        if outcome.placed is None:
            outcome.placed = now
        inbound.pool.note_placed(placement, self)
        inbound.call.priority = inbound.pool.priority(self.request)
        self._attempt = attempt = Attempt(
            self._app,
            self,
            inbound=inbound,
            responder=self._responder,
            dialect=self._dialect,
            placement=placement,
            now=now,
        )
        try:
            attempt.open()
        except InvalidRequest as error:
            self.failed(attempt, Verdict.MISSING_ROUTE, error)

    def expired(self, now: float) -> None:
        """Give up waiting: the deadline has come and nothing could be placed."""
        error = not_started(self.request.pool, now - self.request.arrived)
        self._alone(lambda: self.reject(error))

    def recalled(self) -> None:
        """Wait again: a higher class got the place, and no byte of the answer had come."""
        self._alone(self._recall)

    def _recall(self) -> None:
        self._state = advance(self._state, Event.RECALL)
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = None
        self.outcome.attempts -= 1
        self.outcome.placed = None

    def refused(self, error: Rejected) -> None:
        """See meter.Asking. Says nothing of a pool or an arm: the limit is the tenant's own."""
        self.inbound.trial = None
        self._alone(lambda: self.reject(error))

    def ousted(self, error: Rejected) -> None:
        """Give up waiting: displaced, too late to start, or a reload took away what it is for."""
        self._alone(lambda: self._oust(error))

    def _oust(self, error: Rejected) -> None:
        if not self._move(self.request, reason_of(error), self._app.now()):
            self.reject(error)

    def _alone(self, step: Callable[[], object]) -> None:
        """Take a step that others do not hear of if it fails: they wait to be told something."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this call's alone
            self.broke(error)

    # -- what an attempt tells -------------------------------------------------------------------

    def holding(self, attempt: Attempt) -> None:
        """Take note that a whole answer, or an error, has begun to come."""
        self._state = advance(self._state, _HOLD)
        self.inbound.pool.began(attempt.placement, good=attempt.status < 300)

    def starting(self, attempt: Attempt, now: float) -> None:
        """Take note that the first bytes go to the caller: from here on nothing can be retried."""
        self._state = advance(self._state, _STREAM)
        self.inbound.pool.began(attempt.placement, good=True, now=now)
        self.outcome.first_byte = now

    def failed(
        self, attempt: Attempt, verdict: Verdict, error: ForebayError, *, sent: bool = False
    ) -> None:
        """Decide on a retry: the only place that does."""
        now, pool, endpoint = self._app.now(), self.inbound.pool, attempt.endpoint
        attempt.close()
        self._attempt = None
        try:
            status = attempt.status
            pool.upkeep.judged(endpoint, verdict, told(error, status), now, status=status)
            self._recourse.tried(verdict, sent=sent)
            wider = again(self.request, endpoint.name)
        finally:  # a place that is not given back is lost for good
            pool.release(attempt.placement, now)
        if self._settled:
            return
        refused = pool.budget.refused
        if self._recourse.may_retry(verdict, wider, now):
            self._state = advance(self._state, Event.RETRY)
            self._submit(wider, now)
            return
        reason = self._recourse.reason(verdict)
        if reason and self._move(wider, reason, now):
            return
        if pool.budget.refused > refused:
            self._app.observer.retry_refused(pool.name)
        answer = final(verdict, error, pool.name)
        blamed = Finish.REJECTED if isinstance(answer, InvalidRequest) else Finish.ENGINE_ERROR
        self.answer_error(answer, finish=blamed)

    # -- going elsewhere -------------------------------------------------------------------------

    def _move(self, request: Request, reason: str, now: float) -> bool:
        """Go on at the next place that takes a request for this reason; False: there is none.

        What was placed has been released.
        """
        moved = None if self._settled else self._recourse.elsewhere(request, reason)
        if moved is None:
            return False
        if self._state is not _RECEIVING and self._state is not _QUEUED:
            self._state = advance(self._state, Event.RETRY)
        self.outcome.moved, self.outcome.pool = reason, moved.pool
        self._submit(moved, now)
        return True

    def leave(self, reason: str) -> bool:
        """Leave where it waits or was sent for the next place; False, and it stays, without one."""
        inbound, now = self.inbound, self._app.now()
        if not self._recourse.takes(reason):
            return False
        attempt = self._attempt
        if attempt is not None:
            attempt.close()
            self._attempt = None
            inbound.pool.release(attempt.placement, now)
        elif self._state is _QUEUED:
            inbound.pool.leave(self.request)
        return self._move(self.request, reason, now)

    def take_back(self, *, running: bool) -> None:
        """Leave an arm that was rolled back: what waits, and with `running` what has no byte."""
        if self._state is _QUEUED or (running and self._state in _UNSEEN):
            self._alone(lambda: self.leave(ROLLED_BACK))

    def reject(self, error: Rejected) -> None:
        """Answer that the call is not begun, or not any more."""
        finish = Finish.TIMEOUT if isinstance(error, DeadlineExpired) else Finish.REJECTED
        self.answer_error(error, finish=finish)

    def answer_error(
        self, error: ForebayError, *, finish: Finish, body: bytes | None = None
    ) -> None:
        """Give an error as the whole answer."""
        if self._settled:
            return
        outcome = self.outcome
        outcome.status, outcome.error = error.status, error.code
        if body is None:
            body = self._dialect.body(error)
        outcome.bytes_out = len(body)
        self._responder.send(error.status, self.head(_JSON, error), body)
        self.settle(finish)

    # -- time, leaving, draining -----------------------------------------------------------------

    def check(self, now: float) -> None:
        """Hold the call to its time limits."""
        attempt = self._attempt
        if attempt is None:
            return  # the pool expires what waits
        limits = self.inbound.timeouts or self.inbound.pool.section.timeouts
        if self._state is _STREAMING:
            hold_stream(attempt, limits, now, slow=self._responder.slow)
        else:
            hold_start(self, attempt, limits, now)

    def caller_left(self) -> None:
        """Stop the engine and settle: nobody is there any more."""
        self.outcome.status = self.outcome.status or 499
        self.settle(Finish.LEFT)

    def caller_slow(self) -> None:
        """See messages.Guest."""
        if self._attempt is not None and self._attempt.stream is not None:
            self._attempt.stream.pause()

    def caller_ready(self) -> None:
        """See messages.Guest."""
        if self._attempt is not None and self._attempt.stream is not None:
            self._attempt.last_bytes = self._app.now()  # the engine was not asked until now
            self._attempt.stream.resume()

    def drained(self) -> None:
        """End what the drain limit has left."""
        self._alone(lambda: self._stop(shutting_down(), Finish.DRAINED))

    def revoked(self, error: Rejected) -> None:
        """See meter.Asking."""
        self._alone(lambda: self._stop(error, Finish.DRAINED))

    def broke(self, error: Exception) -> None:
        """End what a fault of the gateway's own has cut short: never silently, never half."""
        logger.error("request failed", exc_info=error)
        if self._settled:
            return
        try:
            self._stop(ForebayError("the gateway failed"), Finish.ENGINE_ERROR)
        except Exception:
            logger.exception("request failed, and so did its error")
            self._responder.abort()
            self.settle(Finish.ENGINE_ERROR)

    def _stop(self, error: ForebayError, finish: Finish) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.started:
            attempt.stop()
            attempt.end_with(error, finish)
        else:
            self.answer_error(error, finish=finish)

    # -- settling --------------------------------------------------------------------------------

    def head(
        self, content_type: bytes, error: ForebayError | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer but for its length."""
        head = answer_head(self.inbound, self.outcome, content_type, error)
        head += self.lease.headers()
        return head

    def settle(self, finish: Finish) -> None:
        """Give everything back and write the outcome: once, whatever happens after.

        Raises nothing, since most of those who settle a call have others to tell something.
        """
        if self._settled:
            return
        self._settled = True
        self._app.active.discard(self)
        try:
            self._settle(finish)
        except Exception:
            logger.exception("settling a request failed")

    def _settle(self, finish: Finish) -> None:
        now, pool, outcome = self._app.now(), self.inbound.pool, self.outcome
        attempt, self._attempt = self._attempt, None
        outcome.finish, outcome.ended = finish, now
        try:
            if self._state is _QUEUED:
                pool.leave(self.request)
            self._state = advance(self._state, last_event(self._state, finish))
        finally:
            try:
                self._account(attempt)
            finally:  # a place that is not given back is lost for good
                if attempt is not None:
                    pool.release(attempt.placement, now, outcome)

    def _account(self, attempt: Attempt | None) -> None:
        """Settle the lease, and tell of the outcome."""
        outcome, seen = self.outcome, None
        try:
            if attempt is not None:
                attempt.close()
                seen = attempt.told(outcome)
            completed = outcome.finish is Finish.COMPLETED
            outcome.empty = completed and seen is not None and not seen.token
        finally:
            self.lease.settle(outcome)
        self._app.settled(self.inbound, outcome, seen)
