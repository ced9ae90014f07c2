# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`Encoder`: a small BERT-style transformer beside ridges, run by ONNX Runtime.

A prompt's slots (`slots`) go through the network, which also hears what the ridges say: that of all
answers, and one for each `kin` of models. It answers for a model with a log length, its spread and
the buckets (`encoder_net`). What is told is a blend of both, calibrated on prompts that neither has
seen in training. `fit` needs PyTorch (extra
`predictor-train`), `predict` ONNX Runtime and numpy.

When not to use it: where prompts are all alike (one template, other numbers), the running mean of
the template is as good and costs nothing. A language that it was not trained on is read by its
letters only.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, field
from math import exp, expm1, log1p
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import onnxruntime as ort

from .contracts import NotFitted, Prediction
from .edges import EDGES
from .fields import row_of
from .kin import Kin
from .linear import Ridge
from .means import ModelMeans
from .slots import slots_of
from .text import counted, ends, hashed_grams
from .wordpiece import WordPiece

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from .contracts import Example, LengthFeatures

FORMAT = 3
"""Of the files; another one is refused."""
FILES = ("meta.json", "model.onnx", "text.npz")
OPINIONS = 2
"""Numbers that the ridge of all answers says of a prompt; those of the kin come after."""
_NORMAL_90 = 1.2816
_EDGE_LOGS = tuple(log1p(edge + 0.5) for edge in EDGES)
_MOST_EXPONENT = 700.0


class Shifts(NamedTuple):
    """Added to the quantiles that the network says, in logs."""

    low: float = 0.0
    middle: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is put right after training, on prompts not trained on."""

    ridge: float = 0.25
    """Share of the ridges' residual in the blend."""
    stranger: float = 0.5
    """That share for a model that was not trained on: what is linear goes less astray."""
    shifts: Shifts = field(default_factory=Shifts)
    kin: Mapping[str, Shifts] = field(default_factory=dict[str, Shifts])
    """Of those models that have kin, by its name."""
    softmax: float = 0.5
    """Share of the network's own buckets; the rest is read off the spread."""
    more: float = 1.0
    """Weight of the longest bucket."""
    lean: float = 0.3
    """How far the rank leans to the side on which answers spread more: a mean, not a median."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Make one of what `asdict` returned."""
        own: dict[str, Any] = dict(told)
        own["shifts"] = Shifts(*told["shifts"])
        own["kin"] = {name: Shifts(*each) for name, each in told["kin"].items()}
        return cls(**own)


@dataclass(frozen=True, slots=True)
class Parts:
    """All that a fitted encoder is made of."""

    onnx: bytes
    vocabulary: tuple[str, ...]
    models: tuple[str, ...]
    """Those that the network knows: the first has id 1, 0 is any other."""
    kin: Kin
    means: ModelMeans
    ridge: Ridge
    """Of all, then one for each kin."""
    shift: NDArray[np.float32]
    scale: NDArray[np.float32]
    """Of what is counted in a prompt."""
    errors: NDArray[np.float32]
    """Of the ridge alone, in logs: a hundred quantiles."""
    calibration: Calibration = field(default_factory=Calibration)
    card: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How and from what it was trained."""


class Said(NamedTuple):
    """What network and ridge say of one answer, before calibration."""

    base: float
    residual: float
    ridge: float
    low: float
    high: float
    buckets: tuple[float, ...]
    known: bool
    """The network was trained on answers of the model."""
    kin: str
    """Name of the model's kin; empty where it has none."""


class Encoder:
    """Predicts by network and ridge; see the module. `options` are those of `encoder_fit.Fit`."""

    def __init__(self, parts: Parts | None = None, **options: Any) -> None:
        self.options = options
        if parts is not None:
            self._take(parts)

    def fit(
        self,
        examples: Sequence[Example],
        progress: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
    ) -> Self:
        """Train, export and calibrate. Needs the extra predictor-train."""
        from . import encoder_fit  # noqa: PLC0415 - PyTorch, which only those who train have

        self._take(encoder_fit.fit(examples, encoder_fit.Fit(**self.options), progress))
        return self

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        """Predict one answer's length for each. Raises NotFitted.

        Neighbours that have the same text are read once.
        """
        if not hasattr(self, "parts_"):
            raise NotFitted("this Encoder has learnt nothing; call fit, or load weights")
        said = self.say(features)
        return [blend(each, self.parts_.calibration) for each in said]

    def say(self, features: Sequence[LengthFeatures]) -> list[Said]:
        """Return what is said of each, before calibration."""
        said: list[Said] = []
        start = 0
        for at in range(1, len(features) + 1):
            if at == len(features) or features[at].text != features[start].text:
                said += self._read(features[start:at])
                start = at
        return said

    def _read(self, features: Sequence[LengthFeatures]) -> list[Said]:
        parts, text = self.parts_, features[0].text
        counts = np.array(counted(text), dtype=np.float32)
        opinions = parts.ridge(*hashed_grams(ends(text)), counts).astype(np.float32)
        ids, positions = slots_of(text, self._wordpiece)
        bases = [parts.means.of(each.model) for each in features]
        mean = parts.means.mean_
        rows = [row_of(each, base - mean) for each, base in zip(features, bases, strict=True)]
        answers: Any = self._session.run(
            None,
            {
                "ids": ids,
                "positions": positions,
                "opinions": opinions,
                "counts": (counts - parts.shift) / parts.scale,
                "models": np.array([self._models.get(each.model, 0) for each in features]),
                "rows": np.array(rows, dtype=np.float32),
            },
        )[0]
        return [
            self._said(answer, base, opinions, each.model)
            for answer, base, each in zip(answers, bases, features, strict=True)
        ]

    def _said(
        self, answer: NDArray[np.float32], base: float, opinions: NDArray[np.float32], model: str
    ) -> Said:
        kin = self.parts_.kin
        own = kin.of.get(model)
        residual, *edges, one, two, three, four = answer.tolist()
        low, high = sorted(edges)
        most = max(one, two, three, four)
        shares = [exp(each - most) for each in (one, two, three, four)]
        total = sum(shares)
        return Said(
            base=base,
            residual=residual,
            ridge=own_opinion(opinions, own),
            low=low,
            high=high,
            buckets=tuple(share / total for share in shares),
            known=model in self._models,
            kin="" if own is None else kin.names[own],
        )

    def _take(self, parts: Parts) -> None:
        self.parts_ = parts
        self._wordpiece = WordPiece(parts.vocabulary)
        self._models = {name: number for number, name in enumerate(parts.models, 1)}
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            parts.onnx,
            options,
            providers=["CPUExecutionProvider"],
            # The fused one goes number by number: nine times as slow as sum and norm apart.
            disabled_optimizers=["SkipLayerNormFusion"],
        )

    # -- files -----------------------------------------------------------------------------------

    def to_files(self) -> dict[str, bytes]:
        """Return what is to be written to a folder, by name. Raises NotFitted."""
        if not hasattr(self, "parts_"):
            raise NotFitted("this Encoder has learnt nothing; there is nothing to write")
        parts = self.parts_
        meta = {
            "format": FORMAT,
            "vocabulary": parts.vocabulary,
            "models": parts.models,
            "kin": parts.kin.names,
            "kin_of": parts.kin.of,
            "mean": parts.means.mean_,
            "means": parts.means.models_,
            "calibration": asdict(parts.calibration),
            "card": parts.card,
        }
        arrays = io.BytesIO()
        own: dict[str, Any] = {
            "shift": parts.shift,
            "scale": parts.scale,
            "errors": parts.errors,
            **parts.ridge.arrays(),
        }
        np.savez_compressed(arrays, **own)
        text = json.dumps(meta, ensure_ascii=False, separators=(",", ":"))
        return dict(zip(FILES, (text.encode(), parts.onnx, arrays.getvalue()), strict=True))

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Make a fitted encoder from what `to_files` returned. Raises ValueError."""
        missing = [name for name in FILES if name not in files]
        if missing:
            raise ValueError(f"these are no weights of an encoder: {', '.join(missing)} missing")
        meta = json.loads(files["meta.json"])
        if meta.get("format") != FORMAT:
            raise ValueError(f"weights of format {meta.get('format')}; this version reads {FORMAT}")
        arrays = np.load(io.BytesIO(files["text.npz"]), allow_pickle=False)
        means = ModelMeans()
        means.mean_, means.models_ = meta["mean"], meta["means"]
        parts = Parts(
            onnx=files["model.onnx"],
            vocabulary=tuple(meta["vocabulary"]),
            models=tuple(meta["models"]),
            kin=Kin(tuple(meta["kin"]), meta["kin_of"]),
            means=means,
            ridge=Ridge.from_arrays(arrays),
            shift=arrays["shift"],
            scale=arrays["scale"],
            errors=arrays["errors"],
            calibration=Calibration.of(meta["calibration"]),
            card=meta["card"],
        )
        try:
            return cls(parts)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise ValueError(f"model.onnx cannot be run: {error}") from error


def own_opinion(opinions: NDArray[np.float32], kin: int | None) -> float:
    """Return the residual that ridges tell for a model: of all, and of its kin, in equal parts."""
    common = float(opinions[0])
    return common if kin is None else (common + float(opinions[OPINIONS + kin])) / 2


def middle_of(said: Said, calibration: Calibration) -> float:
    """Return the log length that network and ridges together say."""
    share = calibration.ridge if said.known else calibration.stranger
    return said.base + (1 - share) * said.residual + share * said.ridge


def blend(said: Said, calibration: Calibration) -> Prediction:
    """Return the prediction that network and ridges together make."""
    middle = middle_of(said, calibration)
    shifts = calibration.kin.get(said.kin, calibration.shifts)
    low, high = min(said.low + shifts.low, 0.0), max(said.high + shifts.high, 0.0)
    half = min(max(shifts.middle, low), high)
    tokens, *quantiles = (
        expm1(max(0.0, log)) for log in (middle, middle + low, middle + half, middle + high)
    )
    rank = middle + calibration.lean * (low + high)
    under = _under(middle, (high - low) / (2 * _NORMAL_90))
    own, rest = calibration.softmax, 1 - calibration.softmax
    shares = [own * a + rest * b for a, b in zip(said.buckets, under, strict=True)]
    shares[3] *= calibration.more
    total = sum(shares)
    one, two, three, four = (share / total for share in shares)
    first, second, third = quantiles
    return Prediction(tokens, (first, second, third), (one, two, three, four), rank)


def _under(middle: float, spread: float) -> tuple[float, float, float, float]:
    """Return the buckets' shares of a log length that is spread evenly around its middle."""
    slope = 1.702 / max(0.05, spread)  # the logistic that is closest to the normal
    one, two, three = (_logistic(slope * (edge - middle)) for edge in _EDGE_LOGS)
    return one, two - one, three - two, 1 - three


def _logistic(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > -_MOST_EXPONENT else 0.0
