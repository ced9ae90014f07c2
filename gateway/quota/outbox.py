"""What is to be asked of a shared store, gathered by tenant until it goes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .store import Operation, Reply
    from .tariff import Tariff

    Answer = Callable[[Reply | None], None]

MOST = 200
"""Operations of one call: a few milliseconds of the store's time."""
TENANT = 3
"""What another tenant in a call costs the store, in operations."""


class Asked:
    """What is to be asked for one tenant, and who gets the answers (None: nobody waits)."""

    __slots__ = ("answers", "operations", "tariff")

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self.operations: list[Operation] = []
        self.answers: list[Answer | None] = []

    def split(self, size: int) -> Asked:
        """Keep the first `size`, and return the rest."""
        rest = Asked(self.tariff)
        rest.operations, self.operations = self.operations[size:], self.operations[:size]
        rest.answers, self.answers = self.answers[size:], self.answers[:size]
        return rest


class Outbox:
    """What waits for the next call, in the order in which tenants came."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __len__(self) -> int:
        return sum(len(asked.operations) for asked in self._asked.values())

    def put(self, tariff: Tariff, operation: Operation, answer: Answer | None) -> None:
        """Add one operation, by what the tenant's tariff is now."""
        asked = self._asked.get(tariff.tenant)
        if asked is None:
            asked = self._asked[tariff.tenant] = Asked(tariff)
        asked.tariff = tariff
        asked.operations.append(operation)
        asked.answers.append(answer)

    def take(self) -> list[Asked]:
        """Take what goes into one call, from each tenant in turn."""
        taken: list[Asked] = []
        room = MOST
        while self._asked and room > 0:
            tenant = next(iter(self._asked))
            asked = self._asked.pop(tenant)
            if len(asked.operations) > room:
                self._asked[tenant] = asked.split(room)
            room -= len(asked.operations) + TENANT
            taken.append(asked)
        return taken

    def take_all(self) -> list[Asked]:
        """Take everything."""
        taken = list(self._asked.values())
        self._asked = {}
        return taken
