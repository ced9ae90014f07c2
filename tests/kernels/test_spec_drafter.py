# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN202, E402
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""The drafter core: automaton, contexts, store and drafter."""

import json
import random
import threading
from array import array
from concurrent.futures import Future
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")

from forebay.kernels.speculative.automaton import SuffixAutomaton
from forebay.kernels.speculative.contexts import DEPTH, SEPARATOR, Contexts, pack
from forebay.kernels.speculative.draft_length import DraftLength
from forebay.kernels.speculative.drafter import Drafter, History
from forebay.kernels.speculative.store import (
    StoreReader,
    answers_of,
    identity,
    open_store,
    write_store,
)


def longest_before(tokens):
    """Length of the longest end of tokens that ended earlier too, naively."""
    n = len(tokens)
    for length in range(n - 1, 0, -1):
        wanted = tokens[n - length :]
        if any(tokens[end - length : end] == wanted for end in range(length, n)):
            return length
    return 0


def longest_in(text, history):
    """Longest end of history before some token of text, up to DEPTH, naively."""
    best = 0
    for place in range(1, len(text)):
        length = 0
        while (
            length < min(DEPTH, place, len(history))
            and text[place - 1 - length] == history[len(history) - 1 - length]
        ):
            length += 1
        best = max(best, length)
    return best


def settled(sort):
    """Run at once, as an executor that is never behind would."""
    done = Future()
    done.set_result(sort())
    return done


def test_fences_lead_to_the_same_place_as_a_search_over_everything():
    rng = random.Random(8)
    text = array("I", [rng.randrange(6) for _ in range(3000)])
    contexts = Contexts.of(text)
    for _ in range(300):
        length = rng.randint(1, 20)
        history = array("I", [rng.randrange(6) for _ in range(length)])
        rank, match = contexts.find(pack(history[-DEPTH:]))
        assert match == longest_in(text, history)
        place = len(text) - contexts._order[rank]
        assert text[place - match : place] == history[len(history) - match :]


def test_no_step_waits_for_a_long_prompt_to_be_sorted():
    prompt = array("I", [1007, 1008, 1009, 1010, 1011] + [t % 500 for t in range(5000)])
    asked = []

    def later(sort):
        asked.append((sort, Future()))
        return asked[-1][1]

    history, drafter = History(prompt), Drafter(most=3, background=later)
    for token in (1007, 1008, 1009):
        history.extend([token])
        assert drafter.propose(history) == []
    (sort, future), *others = asked
    assert others == []
    future.set_result(sort())
    assert drafter.propose(history) == [1010, 1011, 0]


def test_a_short_prompt_is_sorted_on_the_way_and_a_done_one_serves_at_once():
    def never(_):
        raise AssertionError("a short prompt goes nowhere else")

    short = History(array("I", [1, 2, 3, 4]))
    short.extend([1, 2])
    assert Drafter(most=2, background=never).propose(short) == [3, 4]
    long = History(array("I", range(3000)))
    long.extend([5, 6])
    assert Drafter(most=2, background=settled).propose(long) == [7, 8]


def test_the_automaton_knows_the_longest_end_that_stood_before():
    rng = random.Random(0)
    for _ in range(300):
        kinds, tokens, automaton = rng.choice([1, 2, 3, 8]), [], SuffixAutomaton()
        for _ in range(rng.randint(1, 40)):
            token = rng.randrange(kinds)
            automaton.add(token)
            tokens.append(token)
            match, after = automaton.match, automaton.after
            assert match == longest_before(tokens)
            assert tokens[after - match : after] == tokens[len(tokens) - match :]
            assert not match or after < len(tokens)


def test_a_loop_is_copied_over_its_own_end():
    automaton = SuffixAutomaton()
    for token in [7, 1, 2, 1, 2]:
        automaton.add(token)
    assert automaton.following(5) == [1, 2, 1, 2, 1]


def test_contexts_find_the_longest_match_and_what_followed_it():
    rng = random.Random(1)
    for _ in range(400):
        kinds = rng.choice([1, 2, 3, 8])
        text = [rng.randrange(kinds) for _ in range(rng.randint(0, 60))]
        history = [rng.randrange(kinds) for _ in range(rng.randint(1, 30))]
        if text and rng.random() < 0.5:
            history = text[: rng.randint(1, len(text))]
        guess = Contexts.of(array("I", text)).guess(pack(array("I", history[-DEPTH:])), 5)
        assert guess.match == longest_in(text, history)
        if guess.match:
            seen = history[len(history) - guess.match :] + guess.tokens[:1]
            assert any(text[at : at + len(seen)] == seen for at in range(len(text)))


def test_the_more_frequent_continuation_is_guessed_and_nothing_past_a_separator():
    text = array("I", [5, 6, 1, SEPARATOR, 5, 6, 2, SEPARATOR, 5, 6, 1, 9, SEPARATOR])
    guess = Contexts.of(text).guess(pack(array("I", [5, 6])), 4)
    assert (guess.tokens[0], guess.match) == (1, 2)
    assert guess.shares[0] == pytest.approx(2 / 3)
    assert SEPARATOR not in guess.tokens


def test_large_token_ids_keep_their_order():
    text = array("I", [4_000_000_000, 1, 70_000, 2, 255, 256, 3])
    contexts = Contexts.of(text)
    for at, token in enumerate(text[:-1]):
        assert contexts.guess(pack(array("I", [token])), 1).tokens == [text[at + 1]]


def test_the_longest_match_wins_and_the_nearer_source_on_a_tie():
    kept = Contexts.of(array("I", [1, 2, 3, 4, 40]))
    drafter = Drafter(most=1, min_match=1, worth=0.0, store=lambda: kept)
    history = History(array("I", [3, 4, 50]))
    history.extend([2, 3, 4])
    assert drafter.propose(history) == [40]
    history = History(array("I", [2, 3, 4, 50]))
    history.extend([2, 3, 4])
    assert drafter.propose(history) == [50]


def test_a_draft_respects_room_and_the_rows_that_a_batch_may_take():
    drafter = Drafter(most=8, row_budget=16, worth=0.0)
    history = History(array("I", list(range(40))))
    history.extend([5, 6, 7])
    assert [
        len(drafter.propose(history, rows=rows, room=room))
        for rows, room in ((1, None), (1, 3), (4, None), (17, None), (1, 0))
    ] == [8, 3, 4, 0, 0]


def followed(text, ending):
    """Tokens that stand behind an ending somewhere in a text."""
    n = len(ending)
    return {text[at + n] for at in range(len(text) - n) if text[at : at + n] == ending}


def test_random_histories_are_drafted_for_as_a_search_over_everything_would():
    rng = random.Random(11)
    for _ in range(150):
        kinds, least = rng.choice([2, 3, 8]), rng.randint(1, 3)
        prompt, past = ([rng.randrange(kinds) for _ in range(rng.randint(1, 25))] for _ in range(2))
        kept = Contexts.of(array("I", past))
        drafter = Drafter(most=4, row_budget=8, worth=0.0, min_match=least, store=lambda k=kept: k)
        history, answer = History(array("I", prompt)), []
        for _ in range(12):
            new = [rng.randrange(kinds) for _ in range(rng.randint(1, 3))]
            drafter.settle(history, new)
            history.extend(new)
            answer += new
            rows, room = rng.randint(1, 9), rng.randint(0, 5)
            draft, whole = drafter.propose(history, rows=rows, room=room), prompt + answer
            assert len(draft) <= min(4, 8 // rows, room)
            found = [(longest_before(answer), answer)]
            found += [(longest_in(text, whole), text) for text in (prompt, past)]
            match, text = max(found, key=lambda each: each[0])
            if not draft:
                assert match < least or not min(8 // rows, room)
                continue
            assert draft[0] in followed(text, whole[len(whole) - match :])


def test_drafts_shorten_where_they_fail_and_one_is_tried_now_and_then():
    length = DraftLength(1)
    before = length.cut(0, 3, [1.0] * 8)
    for _ in range(200):
        length.learn(0, 3, drafted=8, accepted=0)
    tried = [length.cut(0, 3, [1.0] * 8) for _ in range(32)]
    assert before >= 2
    assert (max(tried), sum(tried)) == (1, 2)
    for _ in range(200):
        length.learn(0, 3, drafted=8, accepted=8)
    assert length.cut(0, 3, [1.0] * 8) == 8


def test_a_long_answer_goes_on_being_matched_when_its_automaton_is_renewed():
    rng = random.Random(2)
    text = [rng.randrange(1000) for _ in range(9000)]
    history = History(array("I", [1]))
    history.extend(text)
    history.extend(text[4000:4010])
    assert history.answer_guess(5).tokens == text[4010:4015]


def test_a_store_gives_back_what_went_in_at_8_bytes_a_token(tmp_path: Path):
    answers = [(day, [day, 7, 8, 9] * 50) for day in range(20)]
    path = tmp_path / "answers.store"
    head = write_store(path, answers, tokenizer="t")
    told, contexts, text = open_store(path)
    assert told == head
    assert list(answers_of(told, text)) == answers
    assert path.stat().st_size <= 8 * head.tokens + 300
    assert contexts.guess(pack(array("I", [3, 7, 8])), 2).tokens == [9, 3]


@pytest.mark.parametrize("size", [0, 5, 40, 900])
def test_a_store_that_is_cut_short_is_refused_by_name(tmp_path: Path, size: int):
    path = tmp_path / "answers.store"
    write_store(path, [(1, list(range(100)))], tokenizer="t")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"answers\.store"):
        open_store(path)


@pytest.mark.parametrize(
    "wrong",
    [{"days": [1]}, {"days": ["x", "y"]}, {"answers": -2}, {"tokens": 1e300}, {"places": 10**9}],
    ids=str,
)
def test_a_head_that_cannot_be_is_refused_by_name(tmp_path: Path, wrong):
    path = tmp_path / "answers.store"
    write_store(path, [(1, list(range(100))), (2, list(range(50)))], tokenizer="t")
    raw = path.read_bytes()
    size = int.from_bytes(raw[8:12], "little")
    told = json.dumps({**json.loads(raw[12 : 12 + size]), **wrong}).encode()
    start = raw[:8] + len(told).to_bytes(4, "little") + told
    path.write_bytes(start + bytes(-len(start) % 64) + raw[-(-(12 + size) // 64) * 64 :])
    with pytest.raises(ValueError, match=r"answers\.store has a damaged head, build it again"):
        open_store(path)


def test_a_text_that_holds_other_answers_than_its_head_says_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "answers.store"
    write_store(path, [(1, list(range(100)))], tokenizer="t")
    raw = bytearray(path.read_bytes())
    start = raw.index(b"\xff\xff\xff\xff")
    raw[start : start + 4] = bytes(4)
    path.write_bytes(raw)
    head, _, text = open_store(path)
    with pytest.raises(ValueError, match=r"answers\.store has a damaged text, build it again"):
        list(answers_of(head, text, path))


def test_a_store_that_another_has_replaced_meanwhile_is_not_written_over(tmp_path: Path):
    path = tmp_path / "answers.store"
    write_store(path, [(1, [1, 2, 3])], tokenizer="t")
    before = identity(path)
    theirs = write_store(path, [(1, [1, 2, 3]), (2, [4, 5, 6])], tokenizer="t")
    with pytest.raises(ValueError, match=r"was changed meanwhile by another command"):
        write_store(path, [(1, [1, 2, 3]), (2, [7, 8, 9])], tokenizer="t", instead=before)
    assert open_store(path)[0] == theirs
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_takes_up_a_new_store_and_keeps_the_old_one_when_the_new_is_damaged(
    tmp_path: Path,
):
    path, now = tmp_path / "answers.store", [0.0]
    write_store(path, [(1, [1, 2, 3])], tokenizer="t")
    reader = StoreReader(path, clock=lambda: now[0])
    recent = pack(array("I", [1, 2]))
    seen = [reader.contexts().guess(recent, 1).tokens]
    write_store(path, [(1, [1, 2, 9])], tokenizer="t")
    seen.append(reader.contexts().guess(recent, 1).tokens)
    now[0] = 3.0
    seen.append(reader.contexts().guess(recent, 1).tokens)
    path.unlink()
    now[0] = 6.0
    seen.append(reader.contexts().guess(recent, 1).tokens)
    path.write_bytes(b"no store")
    now[0] = 9.0
    seen.append(reader.contexts().guess(recent, 1).tokens)
    assert seen == [[3], [3], [9], [9], [9]]


def test_a_new_store_is_opened_beside_the_steps_and_taken_up_when_it_is(tmp_path: Path):
    path, now, asked = tmp_path / "a.store", [0.0], []

    def later(opening):
        asked.append((opening, Future()))
        return asked[-1][1]

    write_store(path, [(0, [1, 2, 3])], tokenizer="")
    reader = StoreReader(path, clock=lambda: now[0], background=later)
    old = reader.contexts()
    write_store(path, [(0, [4, 5, 6])], tokenizer="")
    now[0] = 3.0
    assert reader.contexts() is reader.contexts() is old
    ((opening, future),) = asked
    future.set_result(opening())
    assert reader.contexts().guess(pack(array("I", [4])), 2).tokens == [5, 6]
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"fbstore1")
    damaged.replace(path)
    now[0] = 6.0
    reader.contexts()
    asked[1][1].set_exception(ValueError("damaged"))
    assert reader.contexts().guess(pack(array("I", [4])), 2).tokens == [5, 6]


def test_threads_may_draft_for_different_histories_at_once():
    rng = random.Random(3)
    text = array("I", [rng.randrange(50) for _ in range(5000)])
    kept = Contexts.of(text)
    drafter = Drafter(most=6, store=lambda: kept)
    failures: list[BaseException] = []

    def work(seed):
        try:
            own, alone = random.Random(seed), Drafter(most=6, worth=0.0, store=lambda: kept)
            history, twin = (History(array("I", text[:100])) for _ in range(2))
            for _ in range(300):
                draft = drafter.propose(history)
                # How far a guess is followed is learnt from all threads; what it is, is not.
                both = zip(draft, alone.propose(twin), strict=False)
                assert all(mine == other for mine, other in both)
                new = [*draft[:2], own.randrange(50)]
                drafter.settle(history, new)
                history.extend(new)
                twin.extend(new)
        except BaseException as error:  # noqa: BLE001 - told below, whatever it is
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(drafter.counts.drafts) > 0
