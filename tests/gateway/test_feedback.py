"""What ended requests teach a pool."""

from __future__ import annotations

from typing import Any

import pytest
from tests.asking import a_request

from forebay.gateway.feedback import Feedback
from forebay.gateway.media import MediaTokens
from forebay.policies.contracts import Finish, Outcome, Placement
from forebay.policies.ordering_fair import Fair
from forebay.scheduler.cost import Cost
from forebay.scheduler.length import ConstantLength

ASKED = a_request(output_tokens_estimate=500, stream=True)


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        ({"prompt_tokens": 90, "cached_tokens": 30, "output_tokens": 20}, 60 + 2 * 20),
        ({"output_tokens": 20}, 100 + 2 * 20),
        ({"events": 900, "finish": Finish.LEFT}, 100 + 2 * 900),
        ({"events": 900, "finish": Finish.LEFT, "stream": False}, None),
        ({"events": 0, "finish": Finish.LEFT}, None),
    ],
    ids=["told", "told in part", "left late", "left, and no stream", "left early"],
)
def test_a_request_costs_what_came_of_it(said: dict[str, Any], cost: float | None):
    told: dict[str, Any] = {"stream": True, **said}
    outcome = Outcome(request_id="r", pool="p", route="x", tenant="acme", **told)
    feedback = Feedback(Fair(), ConstantLength(), Cost(), MediaTokens())

    assert feedback.ended(Placement(ASKED, "e0", 600, 0.0), outcome, None) == (cost, False)
