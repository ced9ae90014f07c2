"""Length prediction: how many tokens the answer will have.

`contracts` has what a predictor is told (`LengthFeatures`) and the `LengthPredictor` protocol;
`constant` is the predictor that stands in until one is configured. Pure, as all of scheduler.
"""

from .constant import ConstantLength
from .contracts import LengthFeatures, LengthPredictor

__all__ = ["ConstantLength", "LengthFeatures", "LengthPredictor"]
