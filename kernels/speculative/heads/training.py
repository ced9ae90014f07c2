# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Train one head on a frozen target: windows in, a checkpoint out that engines load.

The target's states are worked out as they are needed and kept nowhere: for a head of one layer that
costs less than reading them back. Stops and goes on: `state.pt` beside the checkpoint holds the
head, the optimiser, the random state and how far it got.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from forebay.kernels.speculative.checkpoint import load_config, write_json
from forebay.kernels.speculative.llama import causal

from .eagle import Eagle1Head, Eagle3Head
from .losses import Batch, eagle1_loss, eagle3_loss, medusa_loss
from .medusa import MedusaHeads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.kernels.speculative.corpus import Corpus
    from forebay.kernels.speculative.llama import Llama

    Head = Eagle1Head | Eagle3Head | MedusaHeads

__all__ = ["METHODS", "Progress", "Recipe", "Trainer", "load_head", "new_head"]

METHODS = ("eagle3", "eagle", "medusa")
_LOSSES: dict[str, Any] = {"eagle3": eagle3_loss, "eagle": eagle1_loss, "medusa": medusa_loss}
_CLASSES: dict[str, Any] = {"eagle3": Eagle3Head, "eagle": Eagle1Head, "medusa": MedusaHeads}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train; lr is reached after `warmup` of the steps and falls to a tenth of it."""

    method: str
    steps: int = 2000
    rows: int = 16
    length: int = 512
    lr: float = 5e-4
    warmup: float = 0.03
    clip: float = 0.5
    unrolls: int = 5
    heads: int = 4
    layers: int = 1
    tied: bool = False
    decay: float = 0.0
    draft_vocab: int = 32000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is; right: share of first choices that hit, by step ahead."""

    step: int
    steps: int
    loss: float
    right: list[float]
    seconds: float


def new_head(target: Llama, recipe: Recipe, corpus: Corpus) -> Head:
    """Make an untrained head that fits the target."""
    config = target.config
    if recipe.method == "medusa":
        return MedusaHeads.beside(target, recipe.heads, layers=recipe.layers, tied=recipe.tied)
    if recipe.method == "eagle":
        return Eagle1Head(config)
    if config.num_hidden_layers < 7:
        raise ValueError("EAGLE-3 needs a target of at least 7 layers, to take three states from")
    head = Eagle3Head(
        config, min(recipe.draft_vocab, config.vocab_size), layers=config.num_hidden_layers
    )
    head.choose_vocab(corpus.counts(config.vocab_size))
    kept = head.to_target(torch.arange(len(head.d2t)))
    head.lm_head.weight.data.copy_(target.lm_head.weight[kept.to(target.lm_head.weight.device)])
    return head


def load_head(method: str, folder: Path, *, dtype: torch.dtype, device: str = "cpu") -> Head:
    """Load a head that was saved; raises ValueError for a folder that holds another kind."""
    other = ValueError(f"{folder} holds no head of method '{method}', give its own")
    if (load_config(folder).get("model_type") == "medusa") != (method == "medusa"):
        raise other
    try:
        return _CLASSES[method].load(folder, dtype=dtype, device=device)
    except (KeyError, RuntimeError):
        raise other from None


class Trainer:
    """Owns one training; `step` does one, `save` writes what it came to."""

    def __init__(
        self,
        target: Llama,
        corpus: Corpus,
        recipe: Recipe,
        *,
        out: Path,
        held_out: Corpus | None = None,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.target = target
        self.recipe = recipe
        self.out = out
        self.done = 0
        self.corpus = corpus
        self.held_out = held_out
        self.device = next(target.parameters()).device
        self.head = new_head(target, recipe, corpus).float().to(self.device)
        self.features = self.head.features
        self._rng = torch.Generator().manual_seed(recipe.seed)
        self._optimiser = torch.optim.AdamW(
            [each for each in self.head.parameters() if each.requires_grad],
            lr=recipe.lr,
            betas=(0.9, 0.95),
            weight_decay=recipe.decay,
            fused=self.device.type == "cuda",
        )

    def resume(self) -> bool:
        """Go on where `save` left off; False when there is nothing to go on from.

        Raises ValueError when that was another recipe.
        """
        path = self.out / "state.pt"
        if not path.exists():
            return False
        told = torch.load(path, map_location=self.device, weights_only=True)
        mine = asdict(self.recipe)
        # What an older state does not name was as it is when nothing is said.
        before = asdict(Recipe(self.recipe.method)) | told["recipe"]
        if before != mine:
            names = before.keys() | mine.keys()  # a newer state may name what this one has not
            other = sorted(name for name in names if before.get(name) != mine.get(name))
            raise ValueError(f"{path} was trained with another {other[0]}; choose another --out")
        self.head.load_state_dict(told["head"])
        self._optimiser.load_state_dict(told["optimiser"])
        self._rng.set_state(told["rng"].cpu())
        self.done = told["done"]
        return True

    def save(self) -> None:
        """Write the checkpoint, and beside it what it takes to go on."""
        self.head.save(self.out)
        told = {
            "recipe": asdict(self.recipe),
            "head": self.head.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "rng": self._rng.get_state(),
            "done": self.done,
        }
        beside = self.out / "state.pt.new"
        torch.save(told, beside)
        beside.replace(self.out / "state.pt")

    def run(
        self,
        *,
        say: Callable[[Progress], None],
        every: int = 50,
        save_every: int = 500,
        limit_s: float | None = None,
    ) -> dict[str, Any]:
        """Train to the recipe's end, or for so many seconds; returns the held-out shares."""
        started = time.perf_counter()
        while self.done < self.recipe.steps:
            spent = time.perf_counter() - started
            loss, right = self.step(spent / limit_s if limit_s else None)
            if self.done % every == 0 or self.done == self.recipe.steps:
                shares = [round(float(share), 4) for share in right]
                seconds = time.perf_counter() - started
                say(Progress(self.done, self.recipe.steps, float(loss), shares, seconds))
            if self.done % save_every == 0:
                self.save()
            if limit_s and spent > limit_s:
                break
        told = {"steps": self.done, "held_out": self.evaluate() if self.held_out else []}
        self.save()
        write_json(self.out / "training.json", {**asdict(self.recipe), **told})
        return told

    def step(self, progress: float | None = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Take one step of the optimiser; progress, 0 to 1, is the steps' unless it is told."""
        recipe = self.recipe
        progress = self.done / recipe.steps if progress is None else progress
        lr = recipe.lr * _pace(progress, recipe.warmup)
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        loss, right = self._loss(self.corpus, self._rng)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), recipe.clip)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self.done += 1
        return loss.detach(), right

    @torch.no_grad()
    def evaluate(self, batches: int = 8) -> list[float]:
        """Share of right first choices by step ahead, on held-out windows, the same each time."""
        assert self.held_out is not None
        rng = torch.Generator().manual_seed(1)
        sums: list[float] = []
        self.head.eval()
        for _ in range(batches):
            _, right = self._loss(self.held_out, rng)
            sums = [a + float(b) for a, b in zip(sums or [0.0] * len(right), right, strict=True)]
        self.head.train()
        return [round(share / batches, 4) for share in sums]

    def _loss(
        self, corpus: Corpus, rng: torch.Generator
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        tokens, learnt = self._windows(corpus, rng)
        places = torch.arange(self.recipe.length, device=self.device).expand_as(tokens)
        kind = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with torch.autocast(self.device.type, dtype=kind, enabled=kind is torch.bfloat16):
            with torch.no_grad():
                hidden, kept = self.target(tokens, places, lambda _: causal, features=self.features)
                logits = self.target.logits(hidden)
            batch = Batch(tokens, learnt, kept or [hidden], logits)
            measure = _LOSSES[self.recipe.method]
            return measure(self.head, self.target, batch, unrolls=self.recipe.unrolls)

    def _windows(self, corpus: Corpus, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut windows and send them ahead: a step must not wait for the one before."""
        cut = corpus.windows(self.recipe.rows, self.recipe.length, rng)
        if self.device.type == "cuda":
            cut = tuple(each.pin_memory() for each in cut)
        tokens, learnt = (each.to(self.device, non_blocking=True) for each in cut)
        return tokens, learnt


def _pace(progress: float, warmup: float) -> float:
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    rest = min(1.0, (progress - warmup) / max(1e-9, 1 - warmup))
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * rest))
