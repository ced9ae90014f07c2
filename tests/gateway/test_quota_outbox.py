"""What goes out to the shared counters, and in which calls."""

from __future__ import annotations

from forebay.gateway.quota.outbox import MOST, TENANT, Outbox
from forebay.gateway.quota.store import Renew
from forebay.gateway.quota.tariff import Tariff
from forebay.policies.quota import Caps


def filled(**many: int) -> Outbox:
    outbox = Outbox()
    for tenant, count in many.items():
        for n in range(count):
            outbox.put(Tariff(tenant, Caps(), {}), Renew([str(n)]), None)
    return outbox


def call(outbox: Outbox) -> list[tuple[str, list[str]]]:
    """Take one call; return whose leases are in it, in order."""
    return [
        (asked.tariff.tenant, [op.leases[0] for op in asked.operations if isinstance(op, Renew)])
        for asked in outbox.take()
    ]


def test_all_that_a_turn_asked_goes_out_in_one_call_in_its_order():
    outbox = filled(a=2, b=1)
    assert len(outbox) == 3
    assert call(outbox) == [("a", ["0", "1"]), ("b", ["0"])]
    assert not outbox


def test_what_is_too_much_for_one_call_goes_behind_the_other_tenants():
    outbox = filled(a=MOST + 1, b=1)
    assert call(outbox) == [("a", [str(n) for n in range(MOST)])]
    assert call(outbox) == [("b", ["0"]), ("a", [str(MOST)])]


def test_each_further_tenant_takes_room_of_its_own():
    outbox = filled(**{f"t{n}": 1 for n in range(MOST)})
    assert len(call(outbox)) == MOST // (TENANT + 1)


def test_a_tenant_is_asked_for_by_the_newest_of_its_tariffs():
    outbox = filled(a=1)
    newest = Tariff("a", Caps(concurrent=1), {})
    outbox.put(newest, Renew(["1"]), None)
    assert [asked.tariff for asked in outbox.take_all()] == [newest]
    assert outbox.take_all() == []
