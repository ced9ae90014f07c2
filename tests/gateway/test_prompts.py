"""Chats rendered and cut as engines do it."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from forebay.gateway.attention import check
from forebay.gateway.config.sections import Pool
from forebay.gateway.prompts.local import LocalTokens, load
from forebay.gateway.prompts.service import MOST_WAITING, EngineCutter, LocalCutter
from forebay.gateway.prompts.template import ChatTemplate
from forebay.policies.contracts import ConfigError, Route
from forebay.prefixcache.blocks import token_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

PARTS = "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOLS = "{% for t in tools %}{{ t | tojson }}{% endfor %}"
CALLS = "{% for m in messages %}{{ m.tool_calls[0].function.arguments['a'] }}{% endfor %}"


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": c} for c in contents], **more}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("source", "dialect", "written"),
    [
        (PLAIN, "vllm", "<user>a\nb"),
        (PLAIN, "sglang", "<user>a b"),
        (PARTS, "vllm", "[a][b]"),
        (PARTS, "sglang", "[a][b]"),
    ],
)
def test_parts_are_joined_or_kept_as_the_template_wants_them(
    source: str, dialect: Any, written: str
):
    assert ChatTemplate(source, dialect=dialect).render(chat([text("a"), text("b")])) == written


def test_tools_are_written_as_each_engine_does():
    tools = [{"type": "function", "function": {"parameters": {"ü": 1}, "name": "f", "x": 2}}]
    said = {d: ChatTemplate(TOOLS, dialect=d).render(chat("x", tools=tools)) for d in ENGINES}
    assert said == {
        "vllm": '{"type": "function", "function": '
        '{"name": "f", "description": null, "parameters": {"ü": 1}}}',
        "sglang": '{"type": "function", "function": '
        '{"parameters": {"ü": 1}, "name": "f", "description": null}, "defer_loading": null}',
    }


ENGINES: tuple[Any, ...] = ("vllm", "sglang")


@pytest.mark.parametrize("arguments", ['{"a": 7}', {"a": 7}])
def test_arguments_of_calls_are_objects(arguments: Any):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert ChatTemplate(CALLS).render(said) == "7"


@pytest.mark.parametrize(
    "odd",
    [
        chat([{"type": "image_url", "image_url": {"url": "x"}}]),
        chat([text("a"), {"type": "input_audio"}]),
        chat(7),
        {"messages": []},
        {"messages": "x"},
        {"messages": [7]},
        {},
    ],
)
def test_what_is_more_than_text_has_no_rendering(odd: dict[str, Any]):
    assert ChatTemplate(PLAIN).render(odd) is None


def test_a_caller_cannot_put_other_messages_into_the_template():
    said = chat("x", chat_template_kwargs={"messages": [], "tools": [1], "thinking": True})
    template = ChatTemplate("{{ messages | length }}{{ thinking }}")
    assert template.render(said) == "1True"


def test_a_template_reaches_nothing_of_the_process():
    with pytest.raises(Exception, match="unsafe"):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render(chat("x"))
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate("{% for %}")


def words(*special: str) -> LocalTokens:
    vocabulary = {w: n for n, w in enumerate(["[UNK]", "a", "b", "c", *special])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[reportAttributeAccessIssue] - the library's own way
    tokenizer.add_special_tokens(list(special))  # type: ignore[reportUnknownMemberType] - the library has no types for it
    return LocalTokens(tokenizer, special=special, template=ChatTemplate(PLAIN))


def test_what_was_cut_before_is_cut_once_and_the_same():
    tokens, plain = words("<user>", "<end>"), words()
    assert (tokens.remembers, plain.remembers) == (True, False)
    for said in (chat("a b", "c"), chat("a b", "c", "b a a")):
        once = tokens.tokens(Route.CHAT, said)
        assert once == tokens.tokens(Route.CHAT, said)
        assert array("I", once or b"").tolist()[:3] == [4, 1, 2]


@pytest.mark.parametrize(
    ("prompt", "cut"),
    [("a b", [1, 2]), (["a", "b"], [1]), ([5, 6], [5, 6]), ([[5, 6], [7]], [5, 6]), (7, None)],
)
def test_prompts_of_completions_are_cut_or_are_tokens(prompt: Any, cut: list[int] | None):
    made = words().tokens(Route.COMPLETIONS, {"prompt": prompt})
    assert (None if made is None else array("I", made).tolist()) == cut


def test_a_folder_without_a_tokenizer_is_a_configuration_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load(str(tmp_path))


# -- within a budget -----------------------------------------------------------------------------

RAW = json.dumps(chat("a b")).encode()


def test_prompts_are_cut_off_the_loop_and_what_fails_is_none(run: Run):
    async def play() -> None:
        loop = asyncio.get_running_loop()
        cutter = LocalCutter(words, budget_s=5.0)
        told: list[bytes | None] = []
        for raw in (RAW, b"{", json.dumps({"messages": 7}).encode()):
            done = loop.create_future()
            assert cutter.submit(Route.CHAT, raw, done.set_result)
            told.append(await done)
        assert [tokens is not None for tokens in told] == [True, False, False]
        assert (cutter.failed, cutter.late) == (1, 0)
        cutter.close()

    run(play())


def test_what_takes_too_long_goes_on_without(run: Run):
    async def play() -> None:
        asked = asyncio.Event()

        async def ask(_route: Route, _body: bytes) -> bytes:
            await asked.wait()
            return b'{"tokens": [1]}'

        cutter = EngineCutter(ask, budget_s=0.001)
        done = asyncio.get_running_loop().create_future()
        assert cutter.submit(Route.CHAT, RAW, done.set_result)
        assert await done is None
        for _ in range(MOST_WAITING - 1):
            assert cutter.submit(Route.CHAT, RAW, lambda _: None)
        assert not cutter.submit(Route.CHAT, RAW, lambda _: None)
        asked.set()
        async with asyncio.timeout(10):
            while not cutter.submit(Route.CHAT, RAW, lambda _: None):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)  # until one of those that came too late has ended
        cutter.close()
        await asyncio.sleep(0)

    run(play())


def test_an_engine_is_asked_for_what_it_needs_only(run: Run):
    async def play() -> None:
        bodies: list[Any] = []

        async def ask(_route: Route, body: bytes) -> bytes:
            bodies.append(msgspec.json.decode(body))
            return b'{"tokens": [3, 4], "count": 2}' if len(bodies) == 1 else b'{"error": 1}'

        cutter = EngineCutter(ask, budget_s=5.0)
        told: list[bytes | None] = []
        for _ in range(2):
            done = asyncio.get_running_loop().create_future()
            raw = json.dumps({**chat("a"), "max_tokens": 5, "user": "me"}).encode()
            assert cutter.submit(Route.CHAT, raw, done.set_result)
            told.append(await done)
        assert told == [token_bytes([3, 4]), None]
        assert bodies[0] == chat("a")
        cutter.close()

    run(play())


def test_a_pool_is_refused_whose_tokenizer_is_not_there(tmp_path: Path):
    def pool(**prefix: Any) -> Pool:
        endpoint = {"name": "e", "engine": "vllm", "url": "http://10.0.0.1:8000"}
        said = {"name": "p", "models": ["m"], "endpoints": [endpoint], "prefix": prefix}
        return Pool.model_validate(said)

    with pytest.raises(ConfigError, match=r"pool p: there is no tokenizer at .*tokenizer\.json"):
        check(pool(tokenizer=str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    check(pool(tokenizer=str(tmp_path)))
    check(pool(tokenizer="engine"))
    check(pool())
