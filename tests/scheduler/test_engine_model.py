"""The engine model: batching, blocks, prefix cache, preemption, time."""

# The invariants are about the model's own books.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.scheduler.engine_kv import chain_hashes
from forebay.scheduler.engine_model import EngineModel
from forebay.scheduler.engine_profiles import DEMO, H200_8B, INSTANT, Profile, find_profile
from forebay.scheduler.engine_sequence import Phase, Removed, Sequence, Stored

SMALL = Profile(
    name="small",
    step_s=1.0,
    prefill_token_s=0.01,
    prefill_pair_s=0.0001,
    decode_sequence_s=0.1,
    context_token_s=0.001,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    block_tokens=4,
    num_blocks=12,
)


def sequence(
    prompt: list[int] | int, output: int = 4, *, salt: str = "", priority: int = 0
) -> Sequence:
    tokens = list(range(prompt)) if isinstance(prompt, int) else prompt
    hashes = chain_hashes(tokens, SMALL.block_tokens, salt=salt)
    return Sequence("s", len(tokens), output, hashes=hashes, priority=priority)


def finish(model: EngineModel) -> float:
    """Run until nothing is left; return the time it took."""
    elapsed = 0.0
    while model.busy:
        elapsed += model.step(inf).duration_s
    return elapsed


def test_one_sequence_takes_a_prefill_step_and_then_a_step_a_token() -> None:
    model = EngineModel(SMALL)
    one = sequence(8, 3)
    model.add(one)

    steps = [model.step() for _ in range(3)]

    assert [step.duration_s for step in steps] == pytest.approx(
        [1 + 8 * 0.01 + 32 * 0.0001, 1 + 0.1 + 8 * 0.001, 1 + 0.1 + 9 * 0.001]
    )
    assert [step.first for step in steps] == [[one], [], []]
    assert [step.finished for step in steps] == [[], [], [one]]
    assert (model.busy, model.kv.used, model.generated_tokens) == (False, 0, 3)


def test_a_long_prompt_is_computed_in_chunks() -> None:
    model = EngineModel(SMALL)
    model.add(sequence(40, 1))

    assert [model.step().prefill_tokens for _ in range(3)] == [16, 16, 8]
    assert not model.busy


def test_decoding_sequences_go_on_while_a_prompt_is_computed() -> None:
    model = EngineModel(SMALL)
    short, long = sequence(4, 9), sequence(20, 1)
    model.add(short)
    model.step()
    model.add(long)

    assert model.step().prefill_tokens == SMALL.max_num_batched_tokens - 1
    assert (model.produced(short), model.produced(long)) == (2, 0)


def test_the_length_of_a_quiet_stretch_is_known_before_it_is_stepped_through() -> None:
    model = EngineModel(replace(SMALL, num_blocks=100))
    for output in (30, 12):
        model.add(sequence(5, output))
    before = model.calm_s()
    model.step()

    known = model.calm_s()

    assert (before, known) == (0.0, pytest.approx(model.step(inf).duration_s))
    assert known == pytest.approx(11 * 1.2 + 0.001 * (11 * 10 + 2 * 55))


def test_a_sequence_without_output_ends_with_its_prompt() -> None:
    model = EngineModel(SMALL)
    one = sequence(8, 0)
    model.add(one)

    result = model.step()

    assert (result.finished, result.first, model.generated_tokens) == ([one], [], 0)


def test_seats_are_limited() -> None:
    model = EngineModel(replace(SMALL, num_blocks=100))
    for _ in range(6):
        model.add(sequence(2, 5))

    model.step()

    assert (model.running, model.waiting) == (4, 2)


def test_a_prompt_seen_before_is_computed_from_its_last_token_on() -> None:
    model = EngineModel(SMALL)
    model.add(sequence(8, 1))
    finish(model)
    again, longer = sequence(8, 1), sequence(11, 1)
    model.add(again)
    finish(model)
    model.add(longer)
    finish(model)

    # The last token is always computed, so the second block of eight tokens is not reused.
    assert (again.cached_tokens, longer.cached_tokens) == (4, 8)
    assert (model.queried_tokens, model.hit_tokens) == (27, 12)


def test_an_answer_is_cached_for_the_next_turn() -> None:
    model = EngineModel(SMALL)
    tokens = list(range(12))
    model.add(Sequence("a", 6, 6, hashes=chain_hashes(tokens, 4)))
    finish(model)
    turn = Sequence("b", 13, 1, hashes=chain_hashes([*tokens, 99], 4))
    model.add(turn)
    finish(model)

    # Eleven tokens were computed (the last one answered was only sampled): two full blocks.
    assert turn.cached_tokens == 8


def test_salts_never_share() -> None:
    model = EngineModel(SMALL)
    seen: list[int] = []
    for salt in ("", "a", "b", "a"):
        one = sequence(9, 1, salt=salt)
        model.add(one)
        finish(model)
        seen.append(one.cached_tokens)

    assert seen == [0, 0, 0, 8]


def test_two_that_compute_one_block_at_once_leave_two_copies() -> None:
    model = EngineModel(replace(SMALL, max_num_batched_tokens=64), events=True)
    first, second = sequence(4, 2), sequence(4, 2)
    model.add(first)
    model.add(second)
    events = model.step().events

    # The last token is computed anew, so neither finds the other's block.
    assert events == [Stored(first, 0, 1), Stored(second, 0, 1)]
    finish(model)
    assert model.kv.cached == 2


def test_evicted_blocks_are_told_tail_first() -> None:
    model = EngineModel(replace(SMALL, num_blocks=3), events=True)
    old = sequence(12, 1)
    model.add(old)
    stored = model.step().events
    assert stored == [Stored(old, 0, 3)]

    model.add(sequence([50, 51, 52, 53, 54], 1))
    events = model.step().events

    assert [event for event in events if isinstance(event, Removed)] == [
        Removed(old.hashes[2]),
        Removed(old.hashes[1]),
    ]


def test_the_last_one_is_preempted_and_computed_again() -> None:
    model = EngineModel(replace(SMALL, num_blocks=4))
    first, last = Sequence("first", 6, 8), Sequence("last", 6, 8)
    model.add(first)
    model.add(last)
    preempted: list[Sequence] = []
    order: list[object] = []
    while model.busy:
        result = model.step()
        preempted += result.preempted
        order += [ended.id for ended in result.finished]

    assert preempted == [last]
    assert order == ["first", "last"]
    assert (model.preemptions, model.generated_tokens, last.made) == (1, 16, 8)


def test_the_most_urgent_goes_first_and_the_least_is_preempted() -> None:
    model = EngineModel(replace(SMALL, num_blocks=4))
    calm, urgent = Sequence("calm", 6, 8, priority=5), Sequence("urgent", 6, 8, priority=-5)
    model.add(calm)
    model.add(urgent)
    ended: list[object] = []
    while model.busy:
        ended += [one.id for one in model.step().finished]

    assert ended == ["urgent", "calm"]
    assert (calm.made, urgent.made) == (8, 8)


def test_without_priorities_arrival_decides() -> None:
    model = EngineModel(replace(SMALL, max_num_seqs=1), priority=False)
    model.add(Sequence("first", 2, 1, priority=5))
    model.add(Sequence("second", 2, 1, priority=-5))

    assert [model.step().finished[0].id for _ in range(2)] == ["first", "second"]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_sequence_is_gone_at_once(steps: int) -> None:
    model = EngineModel(SMALL)
    one = sequence(30, 9)
    model.add(one)
    for _ in range(steps):
        model.step()

    assert model.abort(one)
    assert (model.busy, model.running, model.waiting, model.kv.used) == (False, 0, 0, 0)
    assert not model.abort(one)


def test_aborted_waiting_sequences_leave_nothing_behind() -> None:
    model = EngineModel(replace(SMALL, max_num_seqs=1))
    model.add(sequence(4, 9))
    model.step()
    for _ in range(10_000):
        one = sequence(4, 1)
        model.add(one)
        model.abort(one)

    assert model.waiting == 0
    assert len(model._queue._heap) < 200


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into 12 KV blocks"):
        EngineModel(SMALL).add(sequence(40, 10))
    with pytest.raises(ValueError, match="at least one prompt token"):
        EngineModel(SMALL).add(sequence(0, 10))


def test_steps_taken_at_once_are_the_steps_taken_one_by_one() -> None:
    def play(limit: float) -> tuple[float, list[tuple[float, object]], int]:
        model, rng = EngineModel(H200_8B), Random(4)
        for number in range(50):
            model.add(Sequence(number, rng.randint(1, 3000), rng.randint(1, 300)))
        ends: list[tuple[float, object]] = []
        elapsed = 0.0
        steps = 0
        while model.busy:
            result = model.step(limit)
            elapsed += result.duration_s
            steps += result.steps
            ends += [(round(elapsed, 6), one.id) for one in result.finished]
        return round(elapsed, 6), ends, steps

    assert play(inf) == play(0.0) == play(0.02)


def test_no_step_begins_after_the_limit() -> None:
    model = EngineModel(SMALL)
    model.add(Sequence("s", 4, 30))
    model.step()

    result = model.step(5.0)

    # Steps take a little over 1.1 s each: the fifth begins before 5 s are over.
    assert result.steps == 5
    assert 5.0 <= result.duration_s < 6.2


def test_who_comes_while_a_step_is_planned_ahead_waits_for_two() -> None:
    model = EngineModel(replace(SMALL, schedules_ahead=True))
    first, second = sequence(4, 9), sequence([5, 6, 7], 9)
    model.add(first)
    steps = [model.step()]
    model.add(second)
    assert (model.running, model.waiting) == (1, 1)
    steps += [model.step(), model.step()]

    assert [step.first for step in steps] == [[first], [], [second]]


def test_an_idle_engine_that_plans_ahead_begins_at_once() -> None:
    model = EngineModel(replace(SMALL, schedules_ahead=True))
    first, second, third = sequence(4, 9), sequence(4, 9), sequence(4, 1)
    model.add(first)
    model.step()
    model.add(second)
    model.add(third)
    model.abort(second)
    model.abort(first)

    assert model.step().first == [third]
    assert (model.busy, model.waiting) == (False, 0)


def test_the_h200_profile_gives_the_measured_times() -> None:
    model = EngineModel(H200_8B)
    began: dict[object, float] = {}
    first: dict[object, float] = {}
    tpot: list[float] = []
    elapsed = 0.0

    def add() -> None:
        one = Sequence(len(began), 512, 128)
        began[one.id] = elapsed
        model.add(one)

    for _ in range(64):
        add()
    while model.busy:
        result = model.step()
        elapsed += result.duration_s
        for one in result.first:
            first[one.id] = elapsed
        for one in result.finished:
            tpot.append((elapsed - first[one.id]) / 127)
            if len(began) < 256:
                add()

    # Measured: 4,956 tokens/s, medians of 567 ms and 8.38 ms.
    assert 256 * 128 / elapsed == pytest.approx(4956, rel=0.05)
    assert median(first[one] - began[one] for one in began) == pytest.approx(0.567, rel=0.15)
    assert median(tpot) == pytest.approx(0.00838, rel=0.1)


def test_the_demo_is_pleasant() -> None:
    model = EngineModel(DEMO)
    model.add(Sequence("s", 50, 100))
    first = DEMO.overhead_s + model.step().duration_s

    assert 0.08 < first < 0.12
    assert model.step().duration_s == pytest.approx(0.0146)


def test_instant_takes_no_time() -> None:
    model = EngineModel(INSTANT)
    model.add(Sequence("s", 5000, 1000))
    assert finish(model) == 0.0


def test_a_step_of_no_time_is_one_step_still() -> None:
    model = EngineModel(INSTANT)
    one = Sequence("s", 5, 1000)
    model.add(one)

    assert [model.step().steps for _ in range(40)] == [1] * 40
    assert model.produced(one) == 40


def test_an_unknown_profile_names_the_nearest() -> None:
    assert find_profile("demo") is DEMO
    with pytest.raises(ValueError, match="no profile 'deom': did you mean 'demo'"):
        find_profile("deom")


def test_a_profile_must_let_every_sequence_decode() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least max_num_seqs"):
        replace(SMALL, max_num_batched_tokens=3)
    with pytest.raises(ValueError, match="sizes must be at least 1"):
        replace(SMALL, num_blocks=0)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70), st.text(max_size=80))
def test_a_chain_continued_is_the_chain(tokens: list[int], salt: str) -> None:
    whole = chain_hashes(tokens, 4, salt=salt)
    head = chain_hashes(tokens[:8], 4, salt=salt)
    if len(head) == 2:
        assert head + chain_hashes(tokens[8:], 4, salt=salt, parent=head[-1]) == whole
    assert len(whole) == len(tokens) // 4
    assert all(0 <= one < 2**64 for one in whole)


def test_hashes_are_the_same_in_each_process() -> None:
    assert chain_hashes(list(range(4)), 4) == [17734539769401941754]


class Engine(RuleBasedStateMachine):
    """Any history keeps the books: blocks, references, events, tokens."""

    profile = SMALL

    def __init__(self) -> None:
        super().__init__()
        self.model = EngineModel(self.profile, events=True)
        self.live: list[Sequence] = []
        self.ended: list[Sequence] = []
        self.cached: Counter[int] = Counter()

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        output=st.integers(0, 12),
        salt=st.sampled_from(["", "a"]),
        priority=st.integers(-1, 1),
    )
    def add(self, tokens: list[int], output: int, salt: str, priority: int) -> None:
        hashes = chain_hashes(tokens + [7] * output, SMALL.block_tokens, salt=salt)
        one = Sequence(len(self.live), len(tokens), output, hashes=hashes, priority=priority)
        self.model.add(one)
        self.live.append(one)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        assert self.model.abort(one)
        self.live.remove(one)

    @rule(limit=st.sampled_from([0.0, 3.0, inf]))
    def step(self, limit: float) -> None:
        busy = self.model.busy
        before = {one: self.model.produced(one) for one in self.live}
        result = self.model.step(limit)
        for one in result.finished:
            assert one.made == one.output_tokens
            self.live.remove(one)
            self.ended.append(one)
        progress = result.prefill_tokens or any(
            self.model.produced(one) > count for one, count in before.items()
        )
        assert bool(progress) == busy, "the model is work conserving"
        for event in result.events:
            if isinstance(event, Stored):
                self.cached.update(event.sequence.hashes[event.first : event.end])
            else:
                self.cached[event.block_hash] -= 1
                assert self.cached[event.block_hash] >= 0

    @invariant()
    def blocks_are_never_over_committed(self) -> None:
        kv = self.model.kv
        held = {block for one in self.live for block in one.blocks}
        plain = sum(one.plain for one in self.live)
        assert kv.used == len(held) + plain
        assert 0 <= kv.used <= kv.total
        assert kv.available == kv.total - kv.used

    @invariant()
    def references_are_the_holders(self) -> None:
        holders = Counter(block for one in self.live for block in one.blocks)
        refs = self.model.kv._refs
        spare = set(self.model.kv._spare)
        assert {block: refs[block] for block in range(len(refs)) if block not in spare} == {
            block: holders[block] for block in range(len(refs)) if block not in spare
        }

    @invariant()
    def events_tell_the_cache(self) -> None:
        assert sum(self.cached.values()) == self.model.kv.cached

    @invariant()
    def hits_are_full_blocks_of_the_prompt(self) -> None:
        for one in self.live + self.ended:
            assert one.cached_tokens % SMALL.block_tokens == 0
            assert one.cached_tokens <= max(0, one.prompt_tokens - 1)

    @invariant()
    def everyone_is_somewhere(self) -> None:
        phases = Counter(one.phase for one in self.live)
        assert self.model.waiting == phases[Phase.WAITING]
        assert self.model.running == phases[Phase.PREFILL] + phases[Phase.DECODE]

    def teardown(self) -> None:
        while self.model.busy:
            self.model.step(inf)
        assert (self.model.kv.used, self.model.running, self.model.waiting) == (0, 0, 0)
        assert not any(self.model.kv._refs[block] for block in self.model.kv._idle)


class EngineAhead(Engine):
    """Likewise for an engine that plans its steps ahead."""

    profile = replace(SMALL, schedules_ahead=True)


Engine.TestCase.settings = EngineAhead.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestEngine = Engine.TestCase
TestEngineAhead = EngineAhead.TestCase
