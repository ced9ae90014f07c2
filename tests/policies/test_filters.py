"""What each filter keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.filter_capability import Capability
from forebay.policies.filter_room import Room
from forebay.policies.filter_usable import Usable

if TYPE_CHECKING:
    from forebay.policies.contracts import Filter

REQUEST = a_request(model="big")
CHAT, EMBEDDINGS = frozenset({Route.CHAT}), frozenset({Route.EMBEDDINGS})


def kept(keep: Filter, request: Request, *views: EndpointView) -> list[str]:
    return [view.name for view in keep(request, views, 0.0)]


def test_only_what_is_in_rotation_is_usable():
    assert kept(
        Usable(),
        REQUEST,
        EndpointView("up", "vllm", 4),
        EndpointView("out", "vllm", 4, usable=False),
        EndpointView("full", "vllm", 4, in_flight=4),
    ) == ["up", "full"]


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        pytest.param(REQUEST, ["any", "chat", "lora"], id="route and model"),
        pytest.param(replace(REQUEST, model="tuned"), ["any", "chat", "lora"], id="adapter"),
        pytest.param(replace(REQUEST, model="other"), ["any", "chat"], id="unnamed models"),
        pytest.param(replace(REQUEST, route=Route.EMBEDDINGS), ["any", "emb"], id="route"),
        pytest.param(replace(REQUEST, endpoint="chat"), ["chat"], id="pinned"),
        pytest.param(replace(REQUEST, endpoint="emb"), [], id="pinned to one that cannot"),
        pytest.param(replace(REQUEST, avoid=frozenset({"any"})), ["chat", "lora"], id="tried"),
    ],
)
def test_only_what_can_serve_the_request_is_capable(request_: Request, names: list[str]):
    views = [
        EndpointView("any", "openai", 4),
        EndpointView("chat", "llamacpp", 4, routes=CHAT),
        EndpointView("lora", "vllm", 4, routes=CHAT, models=frozenset({"big", "tuned"})),
        EndpointView("emb", "vllm", 4, routes=EMBEDDINGS, models=frozenset({"big"})),
    ]

    assert kept(Capability(), request_, *views) == names


@settings(deadline=None)
@given(
    limit=st.integers(1, 300),
    share=st.sampled_from([1.0, 0.999, 0.5, 0.1, 1e-9, 0.0]) | st.floats(0, 1),
    in_flight=st.integers(0, 301),
    usable=st.booleans(),
)
def test_there_is_room_where_the_view_says_so(
    *, limit: int, share: float, in_flight: int, usable: bool
):
    view = EndpointView("a", "vllm", limit, usable=usable, share=share, in_flight=in_flight)

    assert bool(kept(Room(), REQUEST, view)) == (view.room > 0)
