"""Length prediction: how many tokens the answer will have.

`contracts` has what a predictor is told (`LengthFeatures`) and the `LengthPredictor` protocol;
`constant` is the predictor that stands in until one is configured, `mean` the baseline that learns
from outcomes. Pure, as all of scheduler.
"""

from .constant import ConstantLength
from .contracts import Learning, LengthFeatures, LengthPredictor
from .mean import MeanLength

__all__ = ["ConstantLength", "Learning", "LengthFeatures", "LengthPredictor", "MeanLength"]
