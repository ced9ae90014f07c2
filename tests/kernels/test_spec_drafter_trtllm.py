# pyright: basic
# ruff: noqa: ANN001, ANN002, ANN204
# (stand-ins whose shapes are TensorRT-LLM's)
"""TensorRT-LLM's drafter: its requests get drafts, and its own class what each version asks for."""

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import final

import pytest

from forebay.kernels.plugins.trtllm_drafter import Drafts, drafter_on


class Request:
    """What the drafter reads and sets of a request."""

    def __init__(self, name, prompt, most=32, *, first=None):
        self.py_request_id, self.py_prompt_len, self.py_max_new_tokens = name, len(prompt), most
        self.py_orig_prompt_len = first or len(prompt)
        self.tokens, self.py_draft_tokens = list(prompt), None

    def get_tokens(self, _beam):
        return self.tokens


class Base(ABC):
    """`_torch/speculative/drafter.py` of TensorRT-LLM 1.2: nothing but a limit is asked for."""

    def __init__(self, max_concurrency: int | None = None) -> None:
        self.max_concurrency = max_concurrency

    @abstractmethod
    def prepare_draft_tokens(self, scheduled_requests, resource_manager=None) -> None: ...

    @final
    def should_use_spec_decode(self, requests) -> bool:
        return self.max_concurrency is None or len(requests) <= self.max_concurrency


class Later(ABC):
    """The same later on: it pads, and may lower the drafts' length."""

    def __init__(
        self, max_draft_len, max_total_draft_tokens, max_concurrency=None, draft_len_schedule=None
    ) -> None:
        self.max_draft_len, self.max_total_draft_tokens = max_draft_len, max_total_draft_tokens
        self._static_max_total_draft_tokens = max_total_draft_tokens
        self.max_concurrency, self._schedule = max_concurrency, draft_len_schedule

    @abstractmethod
    def prepare_draft_tokens(self, scheduled_requests, resource_manager=None) -> None: ...

    @final
    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests, resource_manager=None) -> None:
        del resource_manager
        for each in scheduled_requests.generation_requests:
            missing = self._static_max_total_draft_tokens - len(each.py_draft_tokens)
            each.py_draft_tokens.extend(0 for _ in range(missing))


def step(*requests):
    return SimpleNamespace(generation_requests=list(requests))


def test_requests_get_drafts_and_are_followed_by_id():
    drafts, a = Drafts(3), Request(1, [1, 2, 3, 4, 1])
    a.tokens.append(2)
    drafts.prepare_draft_tokens(step(a))
    assert a.py_draft_tokens == [3, 4, 1]
    a.tokens += [3, 9]
    drafts.prepare_draft_tokens(step(a))
    assert a.py_draft_tokens == []
    drafts.prepare_draft_tokens(step())
    assert drafts._histories == {}


@pytest.mark.parametrize("base", [Base, Later])
def test_the_engines_class_is_told_what_it_reads_in_each_step(base: type):
    made = drafter_on(base)(4, max_concurrency=2)
    assert isinstance(made, base)
    assert made.max_concurrency == 2
    if base is Base:
        assert made.should_use_spec_decode([1, 2])
        assert not made.should_use_spec_decode([1, 2, 3])
    else:
        assert (made.max_draft_len, made.max_total_draft_tokens) == (4, 4)


def test_drafts_of_a_step_are_equally_long_whoever_sees_to_that():
    a = Request(1, [1, 2, 3, 9, 1, 2])
    early = drafter_on(Base)(6)
    early.prepare_draft_tokens(step(a))
    assert a.py_draft_tokens == [3, 9, 1, 2, 0, 0]
    later = drafter_on(Later)(6)
    later.prepare_draft_tokens(step(a))
    assert a.py_draft_tokens == [3, 9, 1, 2]
    later.pad_draft_tokens_for_cuda_graph(step(a))
    assert a.py_draft_tokens == [3, 9, 1, 2, 0, 0]


def test_an_engine_that_lowers_the_drafts_length_gets_no_longer_ones():
    a, made = Request(1, [1, 2, 3, 4, 5, 1, 2]), drafter_on(Later)(4)
    made.max_total_draft_tokens = 2
    made.prepare_draft_tokens(step(a))
    assert a.py_draft_tokens == [3, 4]


def test_no_guess_lies_past_what_a_request_may_answer():
    prompt = [1, 2, 3, 4, 5, 1, 2]
    for most, wanted in ((3, [3, 4]), (2, [3]), (1, [])):
        a = Request(1, prompt, most)
        drafter_on(Base)(4).prepare_draft_tokens(step(a))
        assert a.py_draft_tokens == wanted


def test_a_request_that_was_paused_keeps_its_own_prompt():
    # Two tokens of the answer were made part of its prompt.
    a = Request(1, [1, 2, 3, 4, 1, 2], 4, first=4)
    drafter_on(Base)(4).prepare_draft_tokens(step(a))
    assert a.py_draft_tokens == [3]
