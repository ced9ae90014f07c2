"""The dispatcher against a naive model: plain lists, and all of them looked at each time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType] - untyped there
)

from forebay.policies.contracts import (
    EndpointView,
    InvalidRequest,
    Overloaded,
    Placement,
    Rejected,
    Request,
    Route,
)
from forebay.policies.filter_capability import Capability
from forebay.policies.filter_room import Room
from forebay.policies.filter_usable import Usable
from forebay.policies.ordering_fcfs import Fcfs
from forebay.policies.pick import Seeded
from forebay.policies.score_least_tokens import LeastTokens
from forebay.scheduler.dispatch import Dispatcher
from forebay.scheduler.retry import again

MODELS = [frozenset[str](), frozenset({"big"}), frozenset({"big", "small"})]
ROUTES = [None, frozenset({Route.CHAT}), frozenset({Route.CHAT, Route.EMBEDDINGS})]


def views() -> st.SearchStrategy[EndpointView]:
    return st.builds(
        EndpointView,
        name=st.sampled_from("abc"),
        engine=st.just("sim"),
        limit=st.integers(1, 4),
        usable=st.sampled_from([True, True, False]),
        share=st.sampled_from([1.0, 1.0, 0.5, 1e-9]),
        models=st.sampled_from(MODELS),
        routes=st.sampled_from(ROUTES),
        waiting=st.sampled_from([None, 0, 3]),
        load_at=st.sampled_from([None, 0.0]),
    )


class AgainstLists(RuleBasedStateMachine):
    """Every event, against a model that keeps plain lists and looks at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sequence = 0
        self.waiting: dict[str, Request] = {}
        self.going: list[Placement] = []
        self.done: list[Placement] = []
        self.d = Dispatcher(
            pool="llama",
            ordering=Fcfs(),
            filters=[Usable(), Capability(), Room()],
            scores=[(LeastTokens(), 1.0)],
            pick=Seeded(),
            rng=Random(1),
            max_requests=5,
            max_bytes=45,
        )
        self.d.set_endpoints([EndpointView("a", "sim", 1), EndpointView("b", "sim", 2)])

    def could(self, request: Request) -> list[str]:
        return [
            v.name
            for v in self.d.endpoints.values()
            if v.usable
            and (v.routes is None or request.route in v.routes)
            and (not v.models or request.model in v.models)
            and request.endpoint in (None, v.name)
            and v.name not in request.avoid
        ]

    def flying(self, name: str) -> list[Placement]:
        return [p for p in self.going if p.endpoint == name]

    def has_room(self, name: str) -> bool:
        v = self.d.endpoints[name]
        return len(self.flying(name)) < max(1, int(v.limit * v.share))

    def open_to(self, request: Request) -> list[str]:
        return [name for name in self.could(request) if self.has_room(name)]

    def take(self, placements: list[Placement]) -> None:
        """Replay hand-outs one by one: each to the oldest that then had somewhere to go."""
        for placement in placements:
            movable = [r for r in self.waiting.values() if self.open_to(r)]
            assert placement.request is min(movable, key=lambda r: r.sequence)
            assert placement.endpoint in self.open_to(placement.request)
            assert placement.placed == self.now
            del self.waiting[placement.request.id]
            self.going.append(placement)

    def offer(self, asked: Request) -> None:
        could, open_to = self.could(asked), self.open_to(asked)
        size = sum(r.body_bytes for r in self.waiting.values()) + asked.body_bytes
        full = not asked.avoid and (len(self.waiting) >= 5 or size > 45)
        answer = self.answer(asked)
        if isinstance(answer, Rejected):
            expected = {429} if could else {404, 503}
            assert answer.status in expected
            assert not open_to
            assert full or not could
        elif answer is None:
            assert could
            assert not open_to
            assert not full
            self.waiting[asked.id] = asked
        else:
            assert answer.endpoint in open_to
            assert not any(answer.endpoint in self.open_to(r) for r in self.waiting.values())
            self.going.append(answer)

    def answer(self, asked: Request) -> Placement | Rejected | None:
        try:
            return self.d.submit(asked, self.now)
        except (Overloaded, InvalidRequest) as error:
            return error

    @rule(
        route=st.sampled_from([Route.CHAT, Route.CHAT, Route.EMBEDDINGS]),
        model=st.sampled_from(["big", "big", "small"]),
        pinned=st.sampled_from([None, None, None, "a"]),
        size=st.integers(1, 20),
        patience=st.sampled_from([1.0, 3.0, 50.0]),
    )
    def submit(
        self, route: Route, model: str, pinned: str | None, size: int, patience: float
    ) -> None:
        self.sequence += 1
        self.offer(
            Request(
                id=f"r{self.sequence}",
                pool="llama",
                route=route,
                model=model,
                tenant="acme",
                sequence=self.sequence,
                arrived=self.now,
                deadline=self.now + patience,
                prompt_tokens_estimate=size,
                output_tokens_estimate=20,
                uncached_tokens=size,
                body_bytes=size,
                endpoint=pinned,
            )
        )

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        placement = data.draw(st.sampled_from(self.going))
        self.going.remove(placement)
        self.done.append(placement)
        self.take(self.d.release(placement, self.now))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        placement = data.draw(st.sampled_from(self.going))
        self.going.remove(placement)
        self.take(self.d.release(placement, self.now))
        self.offer(again(placement.request, placement.endpoint))

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        before = self.d.released_twice
        assert self.d.release(data.draw(st.sampled_from(self.done)), self.now) == []
        assert self.d.released_twice == before + 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        left = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.d.leave(self.waiting.pop(left))

    @rule(data=st.data(), limit=st.integers(1, 4), share=st.sampled_from([1.0, 0.5, 1e-9]))
    def edit(self, data: st.DataObject, limit: int, share: float) -> None:
        edited = data.draw(st.sampled_from(list(self.d.endpoints.values())))
        edited.limit, edited.share = limit, share
        edited.usable = data.draw(st.booleans())
        edited.models = data.draw(st.sampled_from(MODELS))
        edited.waiting = data.draw(st.sampled_from([None, 0, 5]))
        self.take(self.d.changed(self.now))

    @rule(some=st.lists(views(), min_size=1, max_size=3, unique_by=lambda v: v.name))
    def replace_endpoints(self, some: list[EndpointView]) -> None:
        self.d.set_endpoints([replace(v) for v in some])
        self.take(self.d.changed(self.now))

    @rule(step=st.sampled_from([0.5, 2.0]))
    def time_passes(self, step: float) -> None:
        self.now += step
        late = sorted(
            (r for r in self.waiting.values() if r.deadline <= self.now), key=lambda r: r.deadline
        )
        expired = self.d.expire(self.now)
        assert {r.id for r in expired} == {r.id for r in late}
        assert [r.deadline for r in expired] == [r.deadline for r in late]
        for gone in late:
            del self.waiting[gone.id]

    @rule()
    def recheck(self) -> None:
        hopeless = {r.id for r in self.waiting.values() if not self.could(r)}
        assert {r.id for r, _ in self.d.recheck(self.now)} == hopeless
        for gone in hopeless:
            del self.waiting[gone]

    @invariant()
    def work_is_conserved(self) -> None:
        assert [r.id for r in self.waiting.values() if self.open_to(r)] == []

    @invariant()
    def counts_are_exact(self) -> None:
        waiting = self.waiting.values()
        for v in self.d.endpoints.values():
            flying = self.flying(v.name)
            assert (v.in_flight, v.in_flight_tokens) == (
                len(flying),
                sum(p.tokens for p in flying),
            )
        assert self.d.in_flight == len(self.going)
        assert (self.d.queued, self.d.queued_bytes) == (
            len(waiting),
            sum(r.body_bytes for r in waiting),
        )
        assert self.d.next_deadline == min((r.deadline for r in waiting), default=None)
        oldest = min((r.arrived for r in waiting), default=self.now)
        assert self.d.oldest_wait(self.now) == self.now - oldest


def test_every_event_agrees_with_a_naive_model():
    run_state_machine_as_test(
        AgainstLists, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
