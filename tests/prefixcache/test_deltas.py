"""What replicas tell each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from forebay.prefixcache import deltas
from forebay.prefixcache.deltas import MOST_WAITING, Delta, Outbox, blocks_of
from forebay.prefixcache.index import Index

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash


def chain(*numbers: int) -> list[BlockHash]:
    return cast("list[BlockHash]", list(numbers))


def test_what_is_written_is_read():
    told = [Delta("p", "a", "1", b"12345678"), Delta("p", "b", "", b"", forget=True)]
    assert deltas.read(deltas.write(told)) == told


@pytest.mark.parametrize("odd", [b"", b"\x91\x01", b"\xc1", b"\x91\x91\xa1a", b"{}"])
def test_what_is_no_delta_is_a_value_error(odd: bytes):
    with pytest.raises(ValueError, match="no deltas"):
        deltas.read(odd)


def test_blocks_cut_short_are_a_value_error():
    with pytest.raises(ValueError, match="bytes"):
        blocks_of(Delta("p", "a", "", b"123"))


def test_an_outbox_gathers_by_endpoint_and_epoch():
    outbox = Outbox()
    outbox.add("p", "a", "1", [1, 2])
    outbox.add("p", "a", "1", [3])
    outbox.add("p", "b", "1", [4])
    assert len(outbox) == 4
    told = [(d.endpoint, blocks_of(d).tolist()) for d in outbox.take()]
    assert told == [("a", [1, 2, 3]), ("b", [4])]
    assert (len(outbox), outbox.take()) == (0, [])


def test_whose_blocks_are_is_told_and_an_older_replica_does_not_say():
    outbox = Outbox()
    outbox.add("p", "a", "1", [1], owner="acme")
    outbox.add("p", "a", "1", [2], owner="b")
    told = deltas.read(deltas.write(outbox.take()))
    assert [(d.owner, blocks_of(d).tolist()) for d in told] == [("acme", [1]), ("b", [2])]
    older = msgspec.msgpack.encode([["p", "a", "1", b"12345678", False]])
    assert deltas.read(older) == [Delta("p", "a", "1", b"12345678")]
    newer = msgspec.msgpack.encode([["p", "a", "1", b"", False, "acme", "more"]])
    assert deltas.read(newer) == [Delta("p", "a", "1", b"", owner="acme")]


def test_what_is_forgotten_is_told_first_and_takes_back_what_waits():
    outbox = Outbox()
    outbox.add("p", "a", "1", [1, 2])
    outbox.forget("p", "a", "2")
    outbox.add("p", "a", "2", [3])
    first, then = outbox.take()
    assert (first.forget, first.epoch, then.epoch, blocks_of(then).tolist()) == (
        True,
        "2",
        "2",
        [3],
    )


def test_an_outbox_is_bounded():
    outbox = Outbox()
    outbox.add("p", "a", "1", range(MOST_WAITING))
    outbox.add("p", "a", "1", [1])
    assert (len(outbox), outbox.dropped) == (MOST_WAITING, 1)


def test_a_snapshot_keeps_what_was_used_last():
    index = Index()
    index.store("a", chain(1, 2, 3))
    index.store("a", chain(1))
    (told,) = deltas.snapshot("p", index, {"a": "7", "b": ""}, most=2)
    assert (told.endpoint, told.epoch, blocks_of(told).tolist()) == ("a", "7", [3, 1])
