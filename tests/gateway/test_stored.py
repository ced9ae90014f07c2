"""Where stored responses lie, for whom, and for how long."""

from __future__ import annotations

from forebay.gateway.stored import Stored, StoredResponses


def add(stored: StoredResponses, name: str, tenant: str = "a", now: float = 0.0) -> None:
    names = {"pool": "p", "endpoint": "e", "model": "m", "engine_model": "n"}
    stored.add(name, tenant=tenant, **names, now=now)


def test_an_id_is_found_by_its_tenant_only():
    stored = StoredResponses()
    add(stored, "r")
    assert stored.find("r", "a", 1.0) == Stored("a", "p", "e", "m", "n", 3600.0)
    assert stored.find("r", "b", 1.0) is None
    assert stored.find("other", "a", 1.0) is None


def test_another_tenant_cannot_take_an_id_over():
    stored = StoredResponses(ttl=10.0)
    add(stored, "r", "a")
    add(stored, "r", "b", 9.0)
    assert stored.find("r", "a", 9.0) is not None
    assert stored.find("r", "b", 9.0) is None
    add(stored, "r", "b", 100.0)
    assert stored.find("r", "b", 100.0) is not None


def test_an_id_lives_for_as_long_as_it_is_asked_for():
    stored = StoredResponses(ttl=10.0)
    add(stored, "r")
    assert stored.find("r", "a", 9.0) is not None
    assert stored.find("r", "a", 18.0) is not None
    assert stored.find("r", "a", 28.0) is None
    assert len(stored) == 0


def test_the_least_recently_used_goes_when_there_are_too_many():
    stored = StoredResponses(most=2)
    for name in ("x", "y"):
        add(stored, name)
    stored.find("x", "a", 1.0)
    add(stored, "z")
    found = [name for name in ("x", "y", "z") if stored.find(name, "a", 1.0)]
    assert found == ["x", "z"]
