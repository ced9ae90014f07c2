"""When one endpoint is in rotation, decided from probes, answers and the time.

Theory of operation. Two witnesses speak of an endpoint. *Probes* ask it on purpose: `fails` in a
row take it out, `successes` in a row bring it back (hysteresis). *Requests* pass by anyway: the
breaker opens after `breaker_fails` failures in a row, much sooner than probes would see it. Good
bytes outweigh probes: an engine too busy to answer a probe while it streams is alive.

A 503 (*refused*) is most often no failure: the engine is full. But one that says nothing else is
the worst of all: refusing at once it has nothing in flight, so that requests are placed there
first. So `breaker_fails` refusals in a row open the breaker too, if nothing good came for an
`interval`. That may be too short for long prompts or whole answers: where a byte or an answer to an
earlier request comes after all, the endpoint was full and is back at once.

    STARTING        no probe has come back; usable only if `optimistic`
    UP              in rotation, with a growing share of its limit after a return
    DOWN            probes fail
    OPEN            the breaker is open, for `breaker_open` seconds
    TRIAL           half-open: one request at a time; it decides
    MISCONFIGURED   it answers, but our key or our model name is wrong there

    STARTING --pass--> UP        STARTING, UP, OPEN, TRIAL --probes fail--> DOWN --probes pass--> UP
    UP --requests fail--> OPEN --time--> TRIAL --success--> UP
                            ^--failure, 503--'   (failure: open for twice as long, 60 s at most)
    any --misconfigured--> MISCONFIGURED --two passes at least--> UP

What belongs to an earlier time is ignored: a request sent before the breaker opened that fails
while it is open. In TRIAL such a straggler cannot be told from the trial and decides like one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

_LONGEST_OPEN_S = 60.0
_FIRST_SHARE = 0.1
_TRIAL_SHARE = 1e-9
"""Of any limit less than one, so that there is room for one request."""
_RAMP_STEPS = 10


class State(StrEnum):
    """Where an endpoint stands."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"
    OPEN = "open"
    TRIAL = "trial"
    MISCONFIGURED = "misconfigured"


@dataclass(frozen=True, slots=True)
class Change:
    """A step from one state to another, and why.

    `old` and `new` are the same only when an endpoint that was up has restarted and starts slowly.
    """

    old: State
    new: State
    reason: str


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """When an endpoint leaves the rotation and when it returns; named as in the configuration."""

    interval: float = 5.0
    """Between probes; good bytes count as alive for as long."""
    fails: int = 3
    successes: int = 2
    breaker_fails: int = 5
    breaker_open: float = 10.0
    slow_start: float = 10.0


class Health:
    """One endpoint's health. Each event returns a Change where the state changed, else None."""

    __slots__ = (
        "_good_at",
        "_joins",
        "_open_s",
        "_open_until",
        "_passes",
        "_probe_fails",
        "_ramp_from",
        "_refusals",
        "_refused_at",
        "_refused_since",
        "_request_fails",
        "_settings",
        "drained",
        "optimistic",
        "reason",
        "state",
        "suspect",
    )

    def __init__(self, settings: HealthSettings, *, optimistic: bool = False) -> None:
        self.optimistic = optimistic
        self.drained = False
        """Taken out of the rotation by an operator, however it is."""
        self.suspect = ""
        """Why its answers are thought bad, so that it gets none to give for a while; else empty."""
        self.state = State.STARTING
        self.reason = "no probe has passed yet"
        """Why it came into its state."""
        self._settings = settings
        self._probe_fails = 0
        self._passes = 0
        self._request_fails = 0
        self._refusals = 0
        self._refused_since = 0.0
        self._refused_at = inf
        """When refusals opened the breaker, while it is open for them."""
        self._good_at = -inf
        self._joins = False
        self._open_s = settings.breaker_open
        self._open_until = inf
        self._ramp_from = -inf

    def configure(self, settings: HealthSettings) -> None:
        """Take other settings; what was counted stays, and an open breaker its time."""
        if settings.breaker_open != self._settings.breaker_open:
            self._open_s = settings.breaker_open
        self._settings = settings

    def join(self) -> None:
        """Have it pass a probe first, and begin with a small share: others can do without it."""
        self.optimistic = False
        self._joins = True

    @property
    def usable(self) -> bool:
        """In rotation, perhaps with a small share."""
        state = self.state
        return not (self.drained or self.suspect) and (
            state is State.UP
            or state is State.TRIAL
            or (state is State.STARTING and self.optimistic)
        )

    @property
    def why_out(self) -> str:
        """Why it is out of the rotation; empty while it is in."""
        if self.usable:
            return ""
        if self.drained:
            return "an operator drained it"
        return f"bad answers: {self.suspect}" if self.suspect else self.reason

    def share(self, now: float) -> float:
        """Return how much of its limit may be used: below 1 in a trial and after a return."""
        if self.state is State.TRIAL:
            return _TRIAL_SHARE
        over = self._settings.slow_start
        since = now - self._ramp_from
        if since >= over:
            return 1.0
        return _FIRST_SHARE + (1.0 - _FIRST_SHARE) * max(0.0, since) / over

    def next_tick(self, now: float) -> float | None:
        """Return when to `tick` and read `share` again; None while only events change anything."""
        if self.state is State.OPEN:
            return self._open_until
        over = self._settings.slow_start
        if self.state is State.UP and now - self._ramp_from < over:
            return min(self._ramp_from + over, now + over / _RAMP_STEPS)
        return None

    def tick(self, now: float) -> Change | None:
        """Let time pass: an open breaker tries itself half-open, or closes where it was wrong."""
        if self.state is not State.OPEN:
            return None
        if self._good_at > self._refused_at:
            return self._close("what it took before is served: it was only full")
        if now >= self._open_until:
            return self._go(State.TRIAL, "the breaker was open long enough; one request tries it")
        return None

    def probe_passed(self, now: float) -> Change | None:
        """Note a probe that found the engine ready, with our key and our models."""
        self._probe_fails = 0
        if self.state is State.STARTING:
            if self._joins:
                self._ramp_from = now
            return self._go(State.UP, "first probe passed")
        if self.state not in (State.DOWN, State.MISCONFIGURED):
            return None
        self._passes += 1
        if self._passes < self._needed():
            return None
        return self._return(now, f"{self._passes} probes in a row passed")

    def probe_failed(self, now: float, reason: str) -> Change | None:
        """Note a probe that failed; while good bytes flow it says nothing."""
        self._passes = 0
        if self.state in (State.DOWN, State.MISCONFIGURED):
            return None
        if now - self._good_at <= self._settings.interval:
            return None
        self._probe_fails += 1
        if self._probe_fails < self._settings.fails:
            return None
        return self._go(State.DOWN, f"{self._probe_fails} probes in a row failed: {reason}")

    def good_bytes(self, now: float) -> None:
        """Note that a good answer's bytes came then."""
        self._good_at = now
        if now >= self._refused_since:
            self._refusals = 0

    def request_succeeded(self, now: float) -> Change | None:
        """Note an answer that ended well."""
        self.good_bytes(now)
        self._request_fails = 0
        if self.state is State.UP:
            return None
        if self.state is State.STARTING:
            return self._go(State.UP, "a request succeeded")
        if self.state is State.TRIAL:
            return self._return(now, "the trial request succeeded")
        return None

    def request_failed(self, now: float, reason: str) -> Change | None:
        """Note an answer that failed by the engine's fault (never the caller's, never full)."""
        if self.state is State.TRIAL:
            return self._open_again(now, reason)
        if self.state not in (State.UP, State.STARTING):
            return None
        self._request_fails += 1
        if self._request_fails < self._settings.breaker_fails:
            return None
        return self._open(now, f"{self._request_fails} requests in a row failed: {reason}")

    def request_refused(self, now: float, reason: str) -> Change | None:
        """Note a 503: back-pressure, unless it is all that comes."""
        if self.state is State.TRIAL:
            return self._open_refused(now, f"the trial request was refused: {reason}")
        if self.state not in (State.UP, State.STARTING):
            return None
        if not self._refusals:
            self._refused_since = now
        self._refusals += 1
        since = now - self._refused_since
        if self._refusals < self._settings.breaker_fails or since < self._settings.interval:
            return None
        text = f"{self._refusals} requests in a row were refused, and nothing good came"
        return self._open_refused(now, f"{text} for {since:.1f} s: {reason}")

    def misconfigured(self, now: float, reason: str) -> Change | None:  # noqa: ARG002 - as the others
        """Note that our configuration is wrong there (401, 403, unknown model)."""
        self._passes = 0
        if self.state is State.MISCONFIGURED:
            return None
        return self._go(State.MISCONFIGURED, reason)

    def restarted(self, now: float) -> Change | None:
        """Note that the engine is a new process: its caches are cold, its failures forgotten."""
        if self.state is State.OPEN:
            return self._go(State.TRIAL, "the engine restarted; one request tries it")
        if self.state is not State.UP:
            return None
        return self._return(now, "the engine restarted")

    def _needed(self) -> int:
        """Count the passes that bring it back.

        The first may have been on its way when the configuration went wrong, or have seen it put
        right; so one more must confirm it.
        """
        needed = self._settings.successes
        return max(2, needed) if self.state is State.MISCONFIGURED else needed

    def _return(self, now: float, reason: str) -> Change:
        self._ramp_from = now
        return self._close(reason)

    def _close(self, reason: str) -> Change:
        self._request_fails = self._refusals = 0
        self._open_s = self._settings.breaker_open
        return self._go(State.UP, reason)

    def _open(self, now: float, reason: str) -> Change:
        self._refused_at = inf
        self._open_until = now + self._open_s
        return self._go(State.OPEN, reason)

    def _open_refused(self, now: float, reason: str) -> Change:
        """Open, never for longer each time: a refused trial costs nobody anything."""
        change = self._open(now, reason)
        self._refused_at = now
        return change

    def _open_again(self, now: float, reason: str) -> Change:
        longest = max(_LONGEST_OPEN_S, self._settings.breaker_open)
        self._open_s = min(self._open_s * 2, longest)
        return self._open(now, f"the trial request failed: {reason}")

    def _go(self, new: State, reason: str) -> Change:
        change = Change(self.state, new, reason)
        self.state, self.reason = new, reason
        return change
