"""What the predictor gets wrong for a tenant, a model and a template, learnt while serving.

The residual (log of the true length less that predicted) has running quantiles for each tenant x
model x template, and for what lies above: tenant x model, model, all. A narrow one counts as its
answers are many, else the wider one does, so that an unknown model, tenant or template is corrected
by what is known of the rest.

An answer that was cut only says that it would have been longer: it moves a quantile that it has
already passed, and says nothing of the others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARES = (0.1, 0.5, 0.9)
_PRIOR = 12.0
"""Answers that the wider one's word counts as."""
_FIRST, _LAST = 0.6, 0.02
"""Steps of a quantile, in logs: the first, and the shortest."""
_MOST = 8192


class Residuals:
    """Running quantiles of one key's residuals."""

    __slots__ = ("quantiles", "seen")

    def __init__(self, start: tuple[float, float, float]) -> None:
        self.quantiles = list(start)
        self.seen = 0

    def add(self, residual: float, *, cut: bool) -> None:
        """Take an answer in."""
        step = max(_LAST, _FIRST / (1 + self.seen) ** 0.6)
        for at, share in enumerate(SHARES):
            under = residual < self.quantiles[at]
            if cut and under:
                continue
            self.quantiles[at] += step * (share - under) * (1.0 if share == 0.5 else 0.7)
        self.quantiles.sort()
        self.seen += not cut


class Correction:
    """Residuals by tenant, model and template; see the module."""

    def __init__(self, *, most: int = _MOST) -> None:
        self._most = most
        self._all = Residuals((0.0, 0.0, 0.0))
        self._known: OrderedDict[tuple[str, ...], Residuals] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def shift(self, tenant: str, model: str, template: str) -> float:
        """Return what is to be added to a predicted log length."""
        return self.quantiles(tenant, model, template)[1]

    def quantiles(self, tenant: str, model: str, template: str) -> tuple[float, float, float]:
        """Return the residual's .1, .5 and .9 quantiles; zeros while nothing is known."""
        told = _drawn((0.0, 0.0, 0.0), self._all)
        for key in _keys(tenant, model, template):
            own = self._known.get(key)
            if own is not None:
                told = _drawn(told, own)
        return told

    def add(
        self, tenant: str, model: str, template: str, residual: float, *, cut: bool = False
    ) -> None:
        """Take in how far an answer was from what was predicted, before any correction."""
        start = _drawn((0.0, 0.0, 0.0), self._all)
        self._all.add(residual, cut=cut)
        for key in _keys(tenant, model, template):
            own = self._known.get(key)
            if own is None:
                own = self._known[key] = Residuals(start)
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(key)
            own.add(residual, cut=cut)
            start = _drawn(start, own)


def _keys(tenant: str, model: str, template: str) -> Iterator[tuple[str, ...]]:
    """Return the keys of an answer, the widest first."""
    yield (model,)
    yield (model, tenant)
    if template:
        yield (model, tenant, template)


def _drawn(wide: tuple[float, float, float], own: Residuals) -> tuple[float, float, float]:
    part = own.seen / (own.seen + _PRIOR)
    low, half, high = (w + part * (o - w) for w, o in zip(wide, own.quantiles, strict=True))
    return low, half, high
