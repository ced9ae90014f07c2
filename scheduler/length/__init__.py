"""Length prediction: how many tokens the answer will have.

`contracts` has what a predictor is told (`LengthFeatures`), what it answers (`Prediction`) and the
protocols: a `LengthPredictor` learns from examples and predicts batches, an `Estimator` says a
number at once. `constant` stands in until one is configured, `mean` is the baseline that learns
from outcomes, `linear` reads n-grams, `encoder` is the small transformer. Pure, as all of
scheduler; what needs numpy or ONNX Runtime is imported by its own name only.
"""

from .constant import ConstantLength
from .contracts import (
    Estimator,
    Example,
    Learning,
    LengthFeatures,
    LengthPredictor,
    NotFitted,
    Prediction,
)
from .mean import MeanLength

__all__ = [
    "ConstantLength",
    "Estimator",
    "Example",
    "Learning",
    "LengthFeatures",
    "LengthPredictor",
    "MeanLength",
    "NotFitted",
    "Prediction",
]
