"""A predictor as it serves: mean, correction, gate and rivals around what reads the prompts.

Pure. Whoever runs the reading predictors (they take milliseconds) hands their predictions in by
`take` and outcomes by `learn`; `estimate` answers at once, from the mean alone.
"""

from __future__ import annotations

from collections import OrderedDict
from math import expm1, log1p
from typing import TYPE_CHECKING, NamedTuple

from forebay.policies.contracts import Finish

from .constant import without_output
from .correction import Correction
from .gate import Gate, GateSettings
from .mean import MeanLength

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome, Request

    from .contracts import LengthFeatures, Prediction
    from .rivals import Rivals

_MOST_OPEN = 20_000
_CUT = frozenset({Finish.LEFT, Finish.TIMEOUT, Finish.TRUNCATED, Finish.DRAINED})


class _Open(NamedTuple):
    features: LengthFeatures
    said: float
    """Log length that was reckoned with, corrected."""
    champion: float
    rival: float | None
    by_rival: bool
    """It was the challenger's that was used."""


class LiveLength:
    """See the module."""

    def __init__(self, gate: GateSettings | None = None, *, rivals: Rivals | None = None) -> None:
        self.mean = MeanLength()
        self.correction = Correction()
        self.gate = Gate(gate)
        self.rivals = rivals
        """None where there is no challenger."""
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def estimate(self, features: LengthFeatures) -> int:
        """Return the predicted output tokens of all answers together, without reading."""
        return self.mean.estimate(features)

    def take(
        self,
        request_id: str,
        features: LengthFeatures,
        prediction: Prediction,
        rival: Prediction | None = None,
    ) -> int | None:
        """Take in what was read out of a prompt; return the tokens to reckon with.

        None while predictions are not believed: they are scored all the same. `rival` is the
        challenger's; once that has taken over, its own comes as `prediction`.
        """
        if features.route in without_output:
            return None
        rivals, used = self.rivals, prediction
        if rivals is not None and rivals.promoted and rival is None:
            rival = prediction  # the challenger's: it alone reads by now
        if rivals is not None and rival is not None and rivals.chooses_challenger(request_id):
            used = rival
        template = features.template
        said = used.rank + self.correction.shift(features.tenant, features.model, template)
        other = None if rival is None else rival.rank
        self._open[request_id] = _Open(features, said, prediction.rank, other, used is rival)
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        if not self.gate.open:
            return None
        each = max(1, round(expm1(max(0.0, said))))
        limit = features.max_tokens
        return (each if limit is None else max(0, min(each, limit))) * features.answers

    def asked(self, request_id: str) -> LengthFeatures | None:
        """Return what was read of a request that has not ended; None where nothing was."""
        known = self._open.get(request_id)
        return None if known is None else known.features

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how a request ended."""
        asked = self._open.pop(request.id, None)
        if asked is None:
            self.mean.learn(request, outcome)
        tokens = outcome.output_tokens or (outcome.events if outcome.finish in _CUT else 0)
        if asked is None or not tokens:
            return
        own = asked.features
        true = log1p(tokens / max(1, own.answers))
        cut = outcome.finish in _CUT or outcome.finish_reason == "length"
        if not cut and outcome.finish is not Finish.COMPLETED:
            return
        raw = self._of_champion(asked)
        if raw is not None:
            self.correction.add(own.tenant, own.model, own.template, true - raw, cut=cut)
        if cut:
            return
        self.mean.note(own, tokens)
        if raw is not None:
            self.gate.add(own.model, said=asked.said, true=true, raw=raw)
        self._compare(asked, true)

    def _of_champion(self, asked: _Open) -> float | None:
        """Return what the champion said; None of what the other one was used for.

        The errors of two predictors make no one correction.
        """
        promoted = self.rivals is not None and self.rivals.promoted
        if asked.by_rival != promoted:
            return None
        return asked.rival if promoted else asked.champion

    def _compare(self, asked: _Open, true: float) -> None:
        rivals = self.rivals
        if rivals is None or asked.rival is None:
            return
        decided = rivals.add(abs(true - asked.champion), abs(true - asked.rival))
        if decided and rivals.promoted:
            self.correction = Correction()
            self.gate.restart()

    @property
    def trusted(self) -> bool:
        """Predictions are believed."""
        return self.gate.open
