"""How long a draft should be: by what drafts from matches like this one have come to.

For each source and match length (in classes) it keeps the share of guessed tokens that were
accepted, counted up to the first that was not, with old counts fading. A draft goes on while the
chance that verifying reaches the token is worth a row of the target's batch.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["DraftLength"]

_FADE = 0.98
_PRIOR = 4.0  # drafts' worth of belief in the first guess
_BOUNDS = (2, 3, 4, 8, 16)  # least match length of each class but the first
_CLASSES = len(_BOUNDS) + 1
_PROBE = 16
_FREE = 0.02


class DraftLength:
    """Learns acceptance by source and match length; `worth` is the least chance worth a row."""

    __slots__ = ("_kept", "_silent", "_tried", "worth")

    def __init__(self, sources: int, *, worth: float = 0.25) -> None:
        first = [0.35, 0.5, 0.65, 0.75, 0.85, 0.92]
        self.worth = worth
        self._silent = 0
        self._tried = [[_PRIOR] * _CLASSES for _ in range(sources)]
        self._kept = [[_PRIOR * share for share in first] for _ in range(sources)]

    @staticmethod
    def class_of(match: int) -> int:
        """Class of a match length: 1, 2, 3, 4-7, 8-15, 16 and more."""
        return bisect_right(_BOUNDS, match)

    def chance(self, source: int, match: int) -> float:
        """Chance that a token is accepted when those before it were."""
        at = self.class_of(match)
        return min(self._kept[source][at] / self._tried[source][at], 0.995)

    def cut(self, source: int, match: int, shares: list[float], *, load: float = 1.0) -> int:
        """Return how many tokens to draft, given how sure the source is of each.

        load: share of the rows that are free which the whole batch would take; in a small batch a
        row costs next to nothing, so less of a chance is worth it.
        """
        worth = max(self.worth * min(load, 1.0), _FREE)
        each = self.chance(source, match)
        reach = 1.0
        for count, share in enumerate(shares):
            reach *= each
            if reach * share < worth:
                return count or self._probe()
        return len(shares)

    def _probe(self) -> int:
        """Draft one token now and then all the same, or nothing more would be learnt."""
        self._silent = (self._silent + 1) % _PROBE
        return int(not self._silent)

    def learn(self, source: int, match: int, *, drafted: int, accepted: int) -> None:
        """Take in how a draft ended. Losing a race with another thread loses one count, no more."""
        if not drafted:
            return
        at = self.class_of(match)
        tried = min(accepted + 1, drafted)
        self._tried[source][at] = max(self._tried[source][at] * _FADE + tried, _PRIOR)
        self._kept[source][at] = self._kept[source][at] * _FADE + accepted
