"""Prefixes that many prompts begin with are hot; what came once is never kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from forebay.prefixcache.hot import LEAST_BLOCKS, MOST_COUNTED, HotPrefixes

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash


def chain(*blocks: int) -> tuple[BlockHash, ...]:
    return cast("tuple[BlockHash, ...]", blocks)


def hot(*, most: int = 8, most_bytes: int = 1000, uses: int = 2) -> HotPrefixes[str]:
    return HotPrefixes(most=most, most_bytes=most_bytes, uses=uses, fade_s=100.0)


def kept(prefixes: HotPrefixes[str], now: float = 0.0) -> list[str]:
    return [each.content for each in prefixes.hottest(now)]


def use(
    prefixes: HotPrefixes[str], text: str, blocks: tuple[BlockHash, ...], times: int = 2
) -> None:
    for _ in range(times):
        if prefixes.met((*blocks, *chain(99)), len(blocks), 0.0):
            prefixes.keep(blocks, text, 10, 0.0)


def test_a_prefix_is_wanted_once_several_prompts_have_parted_at_its_end():
    prefixes = hot(uses=3)
    asked = [prefixes.met(chain(1, 2, 10 + n), 2, 0.0) for n in range(4)]
    assert asked == [False, False, True, True]
    prefixes.keep(chain(1, 2), "system", 6, 0.0)
    assert not prefixes.met(chain(1, 2, 20), 2, 0.0)
    assert (len(prefixes), prefixes.size, kept(prefixes)) == (1, 6, ["system"])


def test_a_conversation_that_goes_on_is_not_hot():
    prefixes, turns = hot(), list(range(1, 40))
    assert not any(prefixes.met(chain(*turns[: n + 2]), n, 0.0) for n in range(2, 38))


def test_what_is_too_short_is_not_counted():
    prefixes = hot()
    assert not any(prefixes.met(chain(1, 2), LEAST_BLOCKS - 1, 0.0) for _ in range(9))


def test_old_uses_fade():
    prefixes = hot()
    assert [prefixes.met(chain(1, 2), 2, at) for at in (0.0, 1000.0)] == [False, False]


def test_the_prefix_that_saves_most_comes_first():
    prefixes = hot()
    use(prefixes, "short", chain(1, 2), times=3)
    use(prefixes, "long", chain(3, 4, 5, 6, 7), times=3)
    use(prefixes, "often", chain(8, 9), times=30)
    assert kept(prefixes) == ["often", "long", "short"]


def test_of_nested_prefixes_the_longest_stands_for_all():
    prefixes = hot()
    use(prefixes, "system", chain(1, 2), times=9)
    use(prefixes, "system and examples", chain(1, 2, 3, 4))
    assert kept(prefixes) == ["system and examples"]


def test_what_is_worth_least_gives_way():
    prefixes = hot(most=2)
    for text, first, times in (("a", 1, 9), ("b", 3, 2), ("c", 5, 5)):
        use(prefixes, text, chain(first, first + 1), times=times)
    assert kept(prefixes) == ["a", "c"]
    assert prefixes.size == 20


def test_no_more_bytes_are_kept_than_may_be():
    prefixes = hot(most_bytes=25)
    for number in range(5):
        use(prefixes, str(number), chain(number * 2 + 1, number * 2 + 2), times=number + 2)
    assert (kept(prefixes), prefixes.size) == (["4", "3"], 20)
    prefixes.keep(chain(1, 2), "huge", 26, 0.0)
    assert prefixes.size == 20


def test_what_cannot_be_kept_is_not_asked_for_with_each_prompt():
    prefixes = hot(uses=3, most_bytes=5)
    asked: list[bool] = []
    for _ in range(6):
        asked.append(prefixes.met(chain(1, 2), 2, 0.0))
        if asked[-1]:
            prefixes.keep(chain(1, 2), "too long", 8, 0.0)
    assert asked == [False, False, True, False, False, True]


def test_what_gave_way_is_asked_for_only_when_it_is_worth_more():
    prefixes = hot(most=1)
    use(prefixes, "often", chain(1, 2), times=4)
    use(prefixes, "seldom", chain(3, 4), times=2)
    assert kept(prefixes) == ["often"]
    assert not prefixes.met(chain(5, 6), 2, 0.0)
    assert [prefixes.met(chain(5, 6), 2, 0.0) for _ in range(2)] == [False, True]
    use(prefixes, "more often", chain(3, 4), times=6)
    assert kept(prefixes) == ["more often"]


def test_counts_are_bounded():
    prefixes = hot()
    for number in range(MOST_COUNTED + 1):
        prefixes.met(chain(0, number + 1), 2, 0.0)
    assert prefixes.met(chain(0, MOST_COUNTED + 1), 2, 0.0)
    assert not prefixes.met(chain(0, 1), 2, 0.0)


def test_what_is_kept_stands_in_no_repr():
    prefixes = hot()
    use(prefixes, "secret", chain(1, 2))
    assert "secret" not in repr(prefixes.hottest(0.0))
