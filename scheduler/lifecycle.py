"""The states of one call, and every step that is legal between them.

Theory of operation. A call goes down (received, queued, placed) and its answer comes up (held or
streamed). Two rules:

- every transition lives in this file, in one table; whatever is not in it is a bug and raises;
- a call is settled exactly once: SETTLED has no way out, and the steps into it say how it ended.

    RECEIVING   the request is read and not yet submitted
    QUEUED      it waits in its pool, the first time or again
    PLACED      it has an endpoint: connecting, sending, or sent, and nothing has come
    HELD        a whole answer is being gathered; the caller has seen nothing of it
    STREAMING   bytes have gone to the caller, so nothing can be tried again
    SETTLED     over

    RECEIVING -> QUEUED, PLACED
    QUEUED    -> PLACED
    PLACED    -> HELD, STREAMING, QUEUED (a retry, or called back)
    HELD      -> STREAMING (too large to hold), QUEUED (a retry)
    and every one of them -> SETTLED

Two things that may surprise. Whether the whole request has gone out is no state: an engine may
answer before (a 413, say), so it is the stream that knows (`Stream.sent`). And what ends a call
depends on what the caller has seen: before the first byte an engine's fault is a FAIL with a
status, after it a CUT.
"""

from __future__ import annotations

from forebay.policies.contracts import Word


class State(Word):
    """Where a call is."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    PLACED = "placed"
    HELD = "held"
    STREAMING = "streaming"
    SETTLED = "settled"


class Event(Word):
    """What happens to a call."""

    QUEUE = "queue"
    """No endpoint has room for it."""
    PLACE = "place"
    """It got an endpoint."""
    HOLD = "hold"
    """A whole answer begins; it is gathered."""
    STREAM = "stream"
    """The first byte goes to the caller, of a stream or of what got too large to hold."""
    RECALL = "recall"
    """A higher class got its place, before any byte had come: it waits again."""
    RETRY = "retry"
    """The attempt failed and the request is submitted again."""
    COMPLETE = "complete"
    """The answer was whole."""
    REJECT = "reject"
    """forebay refuses it: invalid, no key, over quota, full, nothing healthy."""
    FAIL = "fail"
    """The engine failed it for good, before the caller saw anything."""
    CUT = "cut"
    """The engine broke off, and the caller has seen the beginning."""
    EXPIRE = "expire"
    """A deadline or a timeout came."""
    LEAVE = "leave"
    """The caller went away."""
    DRAIN = "drain"
    """forebay stops, and its patience is over."""


class IllegalTransition(LookupError):  # noqa: N818 - named for what it is, as the others
    """An event that cannot happen in this state: a bug, never the caller's or an engine's fault."""


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.RECEIVING, Event.QUEUE): State.QUEUED,
    (State.RECEIVING, Event.PLACE): State.PLACED,
    (State.RECEIVING, Event.REJECT): State.SETTLED,
    (State.RECEIVING, Event.FAIL): State.SETTLED,
    (State.RECEIVING, Event.EXPIRE): State.SETTLED,
    (State.RECEIVING, Event.LEAVE): State.SETTLED,
    (State.RECEIVING, Event.DRAIN): State.SETTLED,
    (State.QUEUED, Event.PLACE): State.PLACED,
    (State.QUEUED, Event.REJECT): State.SETTLED,
    (State.QUEUED, Event.FAIL): State.SETTLED,
    (State.QUEUED, Event.EXPIRE): State.SETTLED,
    (State.QUEUED, Event.LEAVE): State.SETTLED,
    (State.QUEUED, Event.DRAIN): State.SETTLED,
    (State.PLACED, Event.HOLD): State.HELD,
    (State.PLACED, Event.STREAM): State.STREAMING,
    (State.PLACED, Event.RECALL): State.QUEUED,
    (State.PLACED, Event.RETRY): State.QUEUED,
    (State.PLACED, Event.REJECT): State.SETTLED,
    (State.PLACED, Event.FAIL): State.SETTLED,
    (State.PLACED, Event.EXPIRE): State.SETTLED,
    (State.PLACED, Event.LEAVE): State.SETTLED,
    (State.PLACED, Event.DRAIN): State.SETTLED,
    (State.HELD, Event.STREAM): State.STREAMING,
    (State.HELD, Event.RETRY): State.QUEUED,
    (State.HELD, Event.COMPLETE): State.SETTLED,
    (State.HELD, Event.REJECT): State.SETTLED,
    (State.HELD, Event.FAIL): State.SETTLED,
    (State.HELD, Event.EXPIRE): State.SETTLED,
    (State.HELD, Event.LEAVE): State.SETTLED,
    (State.HELD, Event.DRAIN): State.SETTLED,
    (State.STREAMING, Event.COMPLETE): State.SETTLED,
    (State.STREAMING, Event.CUT): State.SETTLED,
    (State.STREAMING, Event.EXPIRE): State.SETTLED,
    (State.STREAMING, Event.LEAVE): State.SETTLED,
    (State.STREAMING, Event.DRAIN): State.SETTLED,
}


def advance(state: State, event: Event) -> State:
    """Return the state after an event; IllegalTransition when it cannot happen there."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a call that is {state} cannot {event}") from None
