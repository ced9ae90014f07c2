"""Copies of requests to another arm: sent when the caller has its answer, compared, thrown away.

A copy never delays or charges anybody: it is made of what the relay has anyway, goes out after the
caller's answer is finished, takes no place in a queue, has a cap of its own, and is not made while
its endpoints are half full or anything waits. One pair is compared a tick, off everybody's path.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from forebay.policies.contracts import Finish, InvalidRequest
from forebay.policies.experiments.answers import ShadowTally, compare, is_json
from forebay.policies.experiments.assignment import uniform
from forebay.policies.experiments.tallies import BUCKET_NAMES, bucket_of

from .copies import Copy
from .experiments.reading import MOST, asks_json, said_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.adapters.base import Headers, Stream
    from forebay.gateway.config.experiments import Shadow as Section
    from forebay.policies.contracts import EngineFailed, Outcome
    from forebay.policies.experiments.answers import Said

    from .endpoint import Endpoint
    from .intake import AnyBody, Inbound
    from .trials import Trial

logger = logging.getLogger(__name__)

LONGEST_S = 120.0
_ROOM = 0.5
"""Of an endpoint's limit beyond which no copy is made."""
_PAIRS = 20
"""Pairs of texts that are kept, where the configuration allows it."""


class _Sent:
    """One copy under way: gathers its answer (a `Sink`)."""

    def __init__(self, shadow: Shadow, trial: Trial, copy: Copy, started: float) -> None:
        self.trial = trial
        self.copy = copy
        self.started = started
        self.stream: Stream
        self.parts: list[bytes] = []
        self.ok = False
        self.streamed = False
        self._size = 0
        self._shadow = shadow

    def on_head(self, status: int, headers: Headers) -> None:
        """See Sink."""
        self.ok = status == 200
        kind = dict(headers).get(b"content-type", b"")
        self.streamed = kind.startswith(b"text/event-stream")

    def on_data(self, data: bytes) -> None:
        """See Sink."""
        self._size += len(data)
        if self._size > MOST:
            self.give_up()
        else:
            self.parts.append(data)

    def on_end(self) -> None:
        """See Sink."""
        self._shadow.ended(self)

    def on_failure(self, error: EngineFailed) -> None:  # noqa: ARG002 - the protocol's name for it
        """See Sink."""
        self.ok = False
        self._shadow.ended(self)

    def give_up(self) -> None:
        """Leave the engine."""
        self.stream.close()
        self.ok = False
        self._shadow.ended(self)


class Shadow:
    """Makes and compares copies, for all experiments of one process."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        crowded: Callable[[], bool],
        tallies: Callable[[str], dict[str, ShadowTally]],
    ) -> None:
        """Make copies. `crowded` tells whether memory for bodies is half full.

        `tallies` returns what is counted of an experiment, by bucket.
        """
        self._tallies = tallies
        self.pairs: dict[str, deque[dict[str, str]]] = {}
        """Pairs that differ, of experiments that may keep them."""
        self._now = now
        self._crowded = crowded
        self._under_way: dict[str, set[_Sent]] = {}
        self._waiting: deque[_Sent] = deque()

    def choose(self, inbound: Inbound) -> None:
        """Keep what a copy needs, where this request is to be copied; 1 us where it is not."""
        assigned = inbound.trial
        if assigned is None or assigned.trial.section.shadow is None:
            return
        trial, section = assigned.trial, assigned.trial.section.shadow
        if assigned.arm == section.arm:
            return
        if uniform(f"{trial.name}\x1fshadow", inbound.call.request_id.encode()) >= section.share:
            return
        if self._is_full(trial, section):
            self.tally(trial, inbound.request.prompt_tokens_estimate).dropped += 1
        else:
            inbound.copy = copy = Copy(inbound)
            copy.shadowed = True

    def _is_full(self, trial: Trial, section: Section) -> bool:
        return len(self._under_way.get(trial.name, ())) >= section.concurrent or self._crowded()

    def tally(self, trial: Trial, prompt_tokens: int) -> ShadowTally:
        """Return what is counted of an experiment's bucket."""
        buckets = self._tallies(trial.name)
        name = BUCKET_NAMES[bucket_of(prompt_tokens)]
        found = buckets.get(name)
        if found is None:
            found = buckets[name] = ShadowTally()
        return found

    def settled(self, inbound: Inbound, outcome: Outcome) -> None:
        """Send the copy of a request whose answer is finished."""
        copy, assigned = inbound.copy, inbound.trial
        if copy is None or assigned is None or assigned.trial.section.shadow is None:
            return
        trial, section = assigned.trial, assigned.trial.section.shadow
        if outcome.finish is not Finish.COMPLETED or not (copy.fits and copy.shadowed):
            return
        endpoint = None if self._is_full(trial, section) else _idle_endpoint(trial, section.arm)
        if endpoint is None:
            self.tally(trial, copy.prompt_tokens).dropped += 1
        else:
            self._send(trial, copy, endpoint, inbound)

    def _send(self, trial: Trial, copy: Copy, endpoint: Endpoint, inbound: Inbound) -> None:
        call, section = copy.call, trial.section.shadow
        assert section is not None
        place = trial.places[section.arm]
        call.request_id = call.request_id[::-1]  # its own, and no easier to guess
        call.priority = None
        call.model = place.model or call.model
        try:
            translation = endpoint.adapter.translate(call)
        except InvalidRequest:
            self.tally(trial, copy.prompt_tokens).failed += 1
            return
        body = copy.body.splice({**(copy.bound or {}), **translation.set}, translation.drop)
        headers = [
            *(("accept", inbound.accept), ("accept-encoding", "identity")),
            ("content-type", inbound.content_type),
            *translation.headers,
        ]
        sent = _Sent(self, trial, copy, self._now())
        self._under_way.setdefault(trial.name, set()).add(sent)
        sent.stream = endpoint.opener.open(call.method, translation.path, headers, body, sent)

    def ended(self, sent: _Sent) -> None:
        """Take in that a copy's answer has ended."""
        under_way = self._under_way.get(sent.trial.name, set())
        if sent in under_way:
            under_way.discard(sent)
            self._waiting.append(sent)

    def tick(self, now: float) -> None:
        """Compare one pair, and leave copies that take too long."""
        for under_way in self._under_way.values():
            for sent in tuple(under_way):
                if now - sent.started > LONGEST_S:
                    sent.give_up()
        if self._waiting:
            self._compare(self._waiting.popleft())

    def _compare(self, sent: _Sent) -> None:
        copy, tally = sent.copy, self.tally(sent.trial, sent.copy.prompt_tokens)
        if not sent.ok:
            tally.failed += 1
            return
        if not _is_greedy(copy.body):
            tally.sampled += 1
            return
        route = copy.call.route
        one = said_in(route, copy.answer, streamed=copy.streamed)
        two = said_in(route, b"".join(sent.parts), streamed=sent.streamed)
        likeness = compare(one, two)
        tally.add(likeness)
        if asks_json(copy.body.members):
            tally.json_asked += 1
            tally.json_first += is_json(one.text)
            tally.json_second += is_json(two.text)
        if not likeness.exact:
            self._keep(sent.trial, one, two)

    def _keep(self, trial: Trial, one: Said, two: Said) -> None:
        section = trial.section.shadow
        if section is not None and section.keep_bodies:
            kept = self.pairs.setdefault(trial.name, deque(maxlen=_PAIRS))
            kept.append({"first": one.text[:4000], "second": two.text[:4000]})

    def close(self) -> None:
        """Leave all copies."""
        for under_way in self._under_way.values():
            for sent in under_way:
                sent.stream.close()
            under_way.clear()


def _is_greedy(body: AnyBody) -> bool:
    try:
        return body.get("temperature") == 0
    except InvalidRequest:  # a number that no float holds
        return False


def _idle_endpoint(trial: Trial, arm: str) -> Endpoint | None:
    """Return the arm's least busy endpoint; None while there is other work to do."""
    if trial.places[arm].pool.dispatcher.queued or trial.pool.dispatcher.queued:
        return None
    usable = [e for e in trial.views(arm) if e.view.usable]
    best = min(usable, key=lambda e: e.view.in_flight / e.view.limit, default=None)
    if best is None or best.view.in_flight >= best.view.limit * _ROOM:
        return None
    return best
