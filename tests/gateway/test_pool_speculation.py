"""What drafts gain is told by kind of request, and how far that has moved within the week."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forebay.gateway.config import sections
from forebay.gateway.endpoint import Endpoint
from forebay.gateway.speculation import PoolSpeculation
from forebay.policies.contracts import Outcome, Placement, Request, Route
from forebay.scheduler.speculation import Reading

WEEK = 7 * 86_400.0


SECTION = sections.Pool.model_validate(
    {
        "name": "p",
        "models": ["m"],
        "endpoints": [
            {"name": "e", "engine": "vllm", "url": "http://e:1", "speculative": "eagle3"}
        ],
    }
)


def pool() -> PoolSpeculation:
    return PoolSpeculation(SECTION)


def end(own: PoolSpeculation, kind: str, tpot: float, *, at: float, speculative: bool) -> None:
    """An answer of eleven tokens."""
    request = Request(
        id="r",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant="",
        sequence=0,
        arrived=at,
        deadline=1e9,
        prompt_tokens_estimate=1,
        output_tokens_estimate=11,
        uncached_tokens=1,
        kind=kind,
    )
    outcome = Outcome("r", "p", "/v1/chat/completions", "", stream=True, output_tokens=11)
    outcome.first_token, outcome.last_token = at - 10 * tpot, at
    own.ended(Placement(request, "e", 12, at), outcome, speculative=speculative)


def test_the_gain_is_plain_time_a_token_over_speculative_where_both_are_known():
    own = pool()
    end(own, "both", 0.04, at=1.0, speculative=False)
    end(own, "both", 0.01, at=2.0, speculative=True)
    end(own, "drafted alone", 0.01, at=3.0, speculative=True)
    end(own, "plain alone", 0.01, at=4.0, speculative=False)

    assert own.speed_ups() == {"both": pytest.approx(4.0)}
    assert own.drifts() == {"both": pytest.approx(0.0)}
    assert own.sent == {True: 2, False: 2}


def test_a_gain_that_shrinks_drifts_below_its_average_of_about_a_week():
    own = pool()
    end(own, "chat", 0.04, at=0.0, speculative=False)
    end(own, "chat", 0.01, at=0.0, speculative=True)
    end(own, "chat", 0.06, at=WEEK, speculative=True)

    # Of times a token one in fifty is new, of the week's average 1 - 1 / e.
    now = 0.04 / (0.98 * 0.01 + 0.02 * 0.06)
    usual = now + (4.0 - now) / 2.718281828
    assert own.speed_ups() == {"chat": pytest.approx(now)}
    assert own.drifts() == {"chat": pytest.approx(now - usual)}

    end(own, "chat", 0.01 * 0.98 + 0.06 * 0.02, at=2 * WEEK, speculative=True)
    assert own.drifts() == {"chat": pytest.approx((now - usual) / 2.718281828)}


def test_what_is_known_of_an_endpoints_drafts_goes_with_it():
    section = SECTION.endpoints[0]
    stays, goes = (
        Endpoint(section.model_copy(update={"name": name}), SECTION.health, cast("Any", None))
        for name in ("stays", "goes")
    )

    own = pool()
    own.show([stays, goes])
    for endpoint in (stays, goes):
        own.read(endpoint, Reading(rate=0.01, length=1.0), 1.0)
    own.show([stays])
    own.show([stays, goes])  # another process, at the same address
    assert (stays.view.speculates, goes.view.speculates) == (False, True)
