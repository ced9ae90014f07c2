"""Champion and challenger: new weights take over only when they are better where it counts.

The challenger is scored in the shadow first, then predicts a tenth of the requests, then all. Each
step takes some hundreds of answers on which its errors (of log lengths) are smaller than the
champion's by more than chance; as many on which they are larger, and it is dropped.
"""

from __future__ import annotations

from zlib import crc32

STAGES = (0.0, 0.1, 1.0)
_FEWEST = 300
_ERRORS = 3.0


class Rivals:
    """How far a challenger has come."""

    def __init__(self, *, fewest: int = _FEWEST) -> None:
        self._fewest = fewest
        self.stage = 0
        self.dropped = False
        self._restart()

    @property
    def share(self) -> float:
        """Of the requests, that the challenger predicts."""
        return 0.0 if self.dropped else STAGES[self.stage]

    @property
    def compared(self) -> int:
        """How many answers count towards the next decision."""
        return self._count

    @property
    def promoted(self) -> bool:
        """The challenger is the champion now."""
        return self.stage == len(STAGES) - 1

    def chooses_challenger(self, request_id: str) -> bool:
        """Tell who predicts a request; the same each time it is asked."""
        return crc32(request_id.encode()) % 1000 < self.share * 1000

    def add(self, champion: float, challenger: float) -> bool:
        """Take in both errors of one answer, without sign; True when something was decided."""
        if self.dropped or self.promoted:
            return False
        better = champion - challenger
        self._count += 1
        self._sum += better
        self._squares += better * better
        if self._count < self._fewest:
            return False
        mean = self._sum / self._count
        variance = max(1e-12, self._squares / self._count - mean * mean)
        score = mean / (variance / self._count) ** 0.5
        if score > _ERRORS:
            self.stage += 1
        elif score < -_ERRORS:
            self.dropped = True
        else:
            return False
        self._restart()
        return True

    def _restart(self) -> None:
        self._count = 0
        self._sum = self._squares = 0.0
