"""No tenant's blocks push out all others'."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import LEAST_BLOCKS, Learned
from forebay.prefixcache.owners import BURST_S, Owners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.prefixcache.blocks import BlockHash

CAPACITY = 100


def chain(first: int, count: int) -> tuple[BlockHash, ...]:
    return cast("tuple[BlockHash, ...]", tuple(range(first, first + count)))


class Cache:
    """What is expected of endpoint `e`, whose blocks give way past CAPACITY."""

    def __init__(self, *, share: float = 0.5, rate: float | None = None) -> None:
        self.index = Index()
        self.learned = Learned(self.index, capacity_blocks=CAPACITY)
        self.owners = self.learned.owners = Owners(self.index, share=share, new_blocks_per_s=rate)

    def send(self, owner: str, blocks: tuple[BlockHash, ...], now: float = 0.0) -> None:
        self.learned.placed("e", blocks, now=now, owner=owner)

    def holds(self, blocks: tuple[BlockHash, ...]) -> int:
        return self.index.match(blocks).get("e", 0)


def test_a_tenant_alone_may_have_all_the_room():
    cache = Cache()
    for number in range(20):
        cache.send("acme", chain(number * 10, 10))
    assert cache.owners.blocks() == {"acme": 200}
    assert cache.index.held("e") == CAPACITY
    assert cache.owners.evicted == {}


def test_a_flood_takes_no_more_than_its_share_from_others():
    cache = Cache()
    mine = [chain(1_000_000 + n * 100, 10) for n in range(5)]
    for blocks in mine:
        cache.send("quiet", blocks)
    for number in range(200):
        cache.send("flood", chain(number * 10, 10))
    assert [cache.holds(blocks) for blocks in mine] == [10] * 5
    assert cache.owners.blocks() == {"quiet": 50, "flood": 50}
    assert cache.owners.evicted["flood"] == 1950
    assert cache.learned.evicted == 1950


def test_the_room_of_whoever_had_all_goes_to_who_comes_later():
    cache = Cache()
    for number in range(10):
        cache.send("first", chain(number * 10, 10))
    for number in range(6):
        cache.send("second", chain(1_000_000 + number * 100, 10))
    assert cache.owners.blocks() == {"first": 50, "second": 50}
    assert cache.holds(chain(0, 10)) == 0
    assert cache.holds(chain(90, 10)) == 10


def test_what_a_greedy_tenant_uses_still_outlives_what_it_used_once():
    cache = Cache()
    cache.send("quiet", chain(1_000_000, 10))
    system = chain(500_000, 10)
    for number in range(100):
        cache.send("flood", (*system, *chain(number * 10, 5)))
    assert cache.holds(system) == 10


def test_new_blocks_are_entered_at_a_bounded_rate_and_old_ones_are_used():
    cache = Cache(rate=1.0)
    most = int(BURST_S)
    cache.send("flood", chain(0, most + 10))
    assert cache.holds(chain(0, most + 10)) == most
    assert cache.owners.refused == {"flood": 10}
    cache.send("flood", chain(0, most + 10), now=4.0)
    assert cache.holds(chain(0, most + 10)) == most + 4
    cache.send("quiet", chain(1_000, 10), now=4.0)
    assert cache.holds(chain(1_000, 10)) == 10


def test_an_endpoint_that_restarted_holds_nothing_of_anybody():
    cache = Cache()
    cache.send("acme", chain(0, 10))
    cache.learned.forget("e")
    assert cache.owners.blocks() == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]), st.integers(0, 30), st.integers(1, 12), st.booleans()
        ),
        min_size=1,
        max_size=120,
    )
)
def test_whoever_is_within_its_share_loses_nothing_to_whoever_is_not(
    steps: list[tuple[str, int, int, bool]],
):
    cache = Cache(share=0.4)
    fair = int(0.4 * CAPACITY)
    for owner, number, count, forget in steps:
        if forget and number == 0:
            cache.learned.forget("e")
        before = cache.owners.blocks()
        base = {"a": 0, "b": 1 << 32, "c": 2 << 32}[owner] + number * 100
        cache.send(owner, chain(base, count))
        after = cache.owners.blocks()
        assert cache.index.held("e") <= CAPACITY
        assert sum(after.values()) >= cache.index.held("e")
        greedy = any(count > fair for count in after.values())
        for other in before.keys() - {owner} if greedy else ():
            assert after.get(other, 0) >= min(before[other], fair)


def test_the_least_capacity_is_less_than_a_test_needs():
    assert LEAST_BLOCKS <= CAPACITY


class Replica(Cache):
    """One of several that tell each other at once what they enter."""

    def __init__(self, others: list[Replica], *, rate: float) -> None:
        super().__init__(rate=rate)
        self.others = others
        self.now = 0.0
        self.learned.share = self._tell

    def ask(self, owner: str, blocks: tuple[BlockHash, ...], now: float, name: str) -> None:
        """Send a prompt that is answered at once."""
        self.now = now
        self.learned.placed("e", blocks, request=name, now=now, owner=owner)
        self.learned.began(name, "e", blocks)
        self.learned.answered("e", blocks, owner)
        self.learned.ended(name)

    def _tell(self, endpoint: str, blocks: Sequence[BlockHash], owner: str) -> None:
        for other in self.others:
            if other is not self:
                other.learned.heard(endpoint, list(blocks), owner, self.now)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 5), st.integers(0, 11), st.integers(1, 30)),
        max_size=40,
    )
)
def test_replicas_together_enter_no_more_new_blocks_than_one_may(
    sent: list[tuple[int, float, int, int]],
):
    replicas: list[Replica] = []
    replicas += [Replica(replicas, rate=1.0) for _ in range(3)]
    now, entered = 0.0, set[int]()
    for number, (place, passed, first, count) in enumerate(sent):
        now += passed
        replicas[place].ask("flood", chain(first * 50, count), now, f"r{number}")
        entered |= {block for block in range(600) if replicas[place].index.holders(block)}  # type: ignore[arg-type] - a hash
    assert len(entered) <= BURST_S + now
    assert len({replica.index.held("e") for replica in replicas}) <= 1


def test_what_was_not_entered_here_is_not_entered_at_another_replica():
    replicas: list[Replica] = []
    replicas += [Replica(replicas, rate=1.0) for _ in range(2)]
    for number in range(4):
        replicas[0].ask("quiet", chain(1_000_000 + number * 100, 10), number * 10.0, f"q{number}")
    for number in range(20):
        replicas[0].ask("flood", chain(number * 10, 10), 100.0, f"f{number}")
    floods = [chain(number * 10, 10) for number in range(20)]
    for replica in replicas:
        assert [replica.holds(blocks) for blocks in floods] == [10] * 6 + [0] * 14


def test_what_another_replica_entered_counts_in_a_tenants_share_here():
    replicas: list[Replica] = []
    replicas += [Replica(replicas, rate=1e9) for _ in range(2)]
    mine = [chain(1_000_000 + n * 100, 10) for n in range(5)]
    for number, blocks in enumerate(mine):
        replicas[0].ask("quiet", blocks, 0.0, f"q{number}")
    for number in range(200):
        replicas[number % 2].ask("flood", chain(number * 10, 10), 0.0, f"f{number}")
    for replica in replicas:
        assert [replica.holds(blocks) for blocks in mine] == [10] * 5
        assert replica.owners.blocks() == {"quiet": 50, "flood": 50}
