# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN204, E402
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""Heads: training teaches them, stops and goes on, and writes what engines load."""

import json
from array import array
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
# These models are so small that a second thread only waits for the first.
torch.set_num_threads(1)

from forebay.kernels.speculative.checkpoint import load_tensors, save_tensors, write_json
from forebay.kernels.speculative.command import main
from forebay.kernels.speculative.corpus import Corpus, Text, read_texts
from forebay.kernels.speculative.heads.losses import (
    Batch,
    eagle1_loss,
    eagle3_loss,
    medusa_loss,
)
from forebay.kernels.speculative.heads.medusa import MedusaHeads
from forebay.kernels.speculative.heads.training import Recipe, Trainer, load_head
from forebay.kernels.speculative.llama import Llama, LlamaConfig, causal, load_llama
from forebay.kernels.speculative.reference.eagle import Eagle
from forebay.kernels.speculative.reference.engine import Engine, Request
from forebay.kernels.speculative.reference.medusa import Medusa

LOSSES = {"eagle3": eagle3_loss, "eagle": eagle1_loss, "medusa": medusa_loss}

CONFIG = LlamaConfig(
    vocab_size=16,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=7,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=12,
)
# A text that a model can learn by heart, so that what is right ahead is known.
TEXT = array("I", [1, 2, 3, 4, 5, 6, 7, 2, 4, 6, 8, 10, 12, 14, 3, 6, 9, 12, 15] * 60)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that has learnt TEXT."""
    torch.manual_seed(0)
    model, corpus = Llama(CONFIG), Corpus([Text(TEXT)])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(120):
        tokens, _ = corpus.windows(8, 32, rng)
        hidden, _ = model(tokens, torch.arange(32).expand_as(tokens), lambda _: causal)
        logits = model.logits(hidden)[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    folder = tmp_path_factory.mktemp("target")
    named = {n if n.startswith("lm_head") else f"model.{n}": v for n, v in model.named_parameters()}
    save_tensors(folder / "model.safetensors", named)
    write_json(folder / "config.json", CONFIG.told())
    (folder / "text.tokens").write_bytes(TEXT.tobytes())
    return folder


@pytest.mark.parametrize("method", ["eagle3", "eagle", "medusa"])
def test_a_minute_of_training_is_clearly_better_than_none(
    method: str, target: Path, tmp_path: Path
):
    corpus = Corpus([Text(TEXT)])
    model = load_llama(target, dtype=torch.float32)
    recipe = Recipe(method=method, steps=120, rows=8, length=32, lr=4e-3, unrolls=3, draft_vocab=14)
    trainer = Trainer(model, corpus, recipe, out=tmp_path, held_out=corpus)
    before = trainer.evaluate(2)
    after = trainer.run(say=lambda _: None)["held_out"]
    assert after[0] > before[0] + 0.3
    again = load_head(method, tmp_path, dtype=torch.float32)
    assert set(again.state_dict()) == set(trainer.head.state_dict())


def test_a_stopped_training_goes_on_to_the_same_end(target: Path, tmp_path: Path):
    corpus = Corpus([Text(TEXT)])
    model = load_llama(target, dtype=torch.float32)
    recipe = Recipe(method="eagle3", steps=6, rows=4, length=24, unrolls=2)
    whole = Trainer(model, corpus, recipe, out=tmp_path / "whole")
    whole.run(say=lambda _: None)
    cut = Trainer(model, corpus, recipe, out=tmp_path / "cut")
    for _ in range(3):
        cut.step()
    cut.save()
    on = Trainer(model, corpus, recipe, out=tmp_path / "cut")
    assert on.resume()
    assert on.done == 3
    on.run(say=lambda _: None)
    for name, value in whole.head.state_dict().items():
        torch.testing.assert_close(on.head.state_dict()[name], value)
    with pytest.raises(ValueError, match="another lr"):
        Trainer(
            model, corpus, Recipe(method="eagle3", steps=6, rows=4, length=24, unrolls=2, lr=1.0),
            out=tmp_path / "cut",
        ).resume()  # fmt: skip


def test_tied_medusa_heads_leave_the_targets_lm_head_and_learn_all_the_same(
    target: Path, tmp_path: Path
):
    corpus, model = Corpus([Text(TEXT)]), load_llama(target, dtype=torch.float32)
    recipe = Recipe(
        method="medusa", steps=120, rows=8, length=32, lr=4e-3, tied=True, layers=2, decay=0.01
    )
    trainer = Trainer(model, corpus, recipe, out=tmp_path, held_out=corpus)
    before = trainer.evaluate(2)
    assert trainer.run(say=lambda _: None)["held_out"][0] > before[0] + 0.2
    told, tensors = json.loads((tmp_path / "config.json").read_text()), load_tensors(tmp_path)
    assert told["original_lm_head"]
    assert told["num_hidden_layers"] == 2
    assert sorted(tensors) == [
        *(f"blocks.{head}.layers.{layer}.weight" for head in range(4) for layer in range(2)),
        "lm_heads.0.weight",
    ]
    torch.testing.assert_close(tensors["lm_heads.0.weight"], model.lm_head.weight.bfloat16())
    again = load_head("medusa", tmp_path, dtype=torch.float32)
    hidden = torch.randn(2, CONFIG.hidden_size)
    for own, other in zip(trainer.head.eval()(hidden), again(hidden), strict=True):
        torch.testing.assert_close(own, other, rtol=0.1, atol=0.1)


def test_a_state_from_before_a_setting_was_there_is_gone_on_from(target: Path, tmp_path: Path):
    corpus, model = Corpus([Text(TEXT)]), load_llama(target, dtype=torch.float32)
    recipe = Recipe(method="eagle", steps=4, rows=2, length=16, unrolls=2)
    trainer = Trainer(model, corpus, recipe, out=tmp_path)
    trainer.step()
    trainer.save()
    told = torch.load(tmp_path / "state.pt", weights_only=True)
    del told["recipe"]["tied"], told["recipe"]["decay"]
    torch.save(told, tmp_path / "state.pt")
    assert Trainer(model, corpus, recipe, out=tmp_path).resume()
    other = Recipe(method="eagle", steps=4, rows=2, length=16, unrolls=2, decay=0.1)
    with pytest.raises(ValueError, match="another decay"):
        Trainer(model, corpus, other, out=tmp_path).resume()
    told["recipe"]["warmth"] = 3
    torch.save(told, tmp_path / "state.pt")
    with pytest.raises(ValueError, match="another warmth"):
        Trainer(model, corpus, recipe, out=tmp_path).resume()


def test_the_layouts_are_those_that_engines_load(target: Path, tmp_path: Path):
    told: dict[str, tuple[list[str], dict]] = {}
    for method in ("eagle3", "eagle", "medusa"):
        out = tmp_path / method
        assert not main(
            f"train --method {method} --target {target} --out {out} --data {target}/text.tokens "
            "--steps 1 --rows 2 --length 16 --draft-vocab 12 --heads 2 --unrolls 2".split()
        )
        config = json.loads((out / "config.json").read_text())
        told[method] = (sorted(load_tensors(out)), config)
    layer = ["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm"]
    layer += [f"self_attn.{x}_proj" for x in "koqv"]
    assert told["eagle3"][0] == sorted(
        ["d2t", "t2d", "fc.weight", "lm_head.weight", "norm.weight"]
        + [f"midlayer.{x}.weight" for x in [*layer, "hidden_norm", "input_layernorm"]]
    )
    assert told["eagle"][0] == sorted(["fc.weight", *(f"layers.0.{x}.weight" for x in layer)])
    assert told["medusa"][0] == sorted(
        f"{name}.weight" for i in range(2) for name in (f"blocks.{i}.layers.0", f"lm_heads.{i}")
    )
    assert told["eagle3"][1]["architectures"] == ["LlamaForCausalLMEagle3"]
    assert told["eagle3"][1]["draft_vocab_size"] == 12
    # In `eagle_config` SGLang would read them too, and add 1.
    assert told["eagle3"][1]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert told["eagle3"][1]["eagle_config"] == {"use_aux_hidden_state": True}
    sglang = tmp_path / "eagle" / "sglang"
    assert sorted(load_tensors(sglang)) == sorted([*told["eagle"][0], "fc.bias"])
    assert json.loads((sglang / "config.json").read_text())["architectures"] == [
        "LlamaForCausalLMEagle"
    ]
    assert told["eagle"][1]["num_hidden_layers"] == 1
    assert told["medusa"][1]["num_heads"] == 2


def test_draft_ids_lead_to_the_more_frequent_tokens(target: Path, tmp_path: Path):
    model = load_llama(target, dtype=torch.float32)
    recipe = Recipe(method="eagle3", draft_vocab=4, rows=2, length=16)
    texts = [Text(array("I", [9, 9, 9, 3, 3, 3, 12, 12, 1, 1, 5] * 4))]
    head = Trainer(model, Corpus(texts), recipe, out=tmp_path).head
    assert head.to_target(torch.arange(4)).tolist() == [1, 3, 9, 12]
    assert head.t2d.nonzero().flatten().tolist() == [1, 3, 9, 12]


def test_a_whole_vocabulary_is_written_without_tables_and_read_with_or_without(
    target: Path, tmp_path: Path
):
    model = load_llama(target, dtype=torch.float32)
    recipe = Recipe(method="eagle3", draft_vocab=32000, rows=2, length=16)
    head = Trainer(model, Corpus([Text(TEXT)]), recipe, out=tmp_path).head
    head.save(tmp_path)
    tensors = load_tensors(tmp_path)
    assert not {"d2t", "t2d"} & set(tensors)
    again = load_head("eagle3", tmp_path, dtype=torch.float32)
    assert again.to_target(torch.arange(16)).tolist() == list(range(16))
    tables = {"d2t": head.d2t, "t2d": head.t2d}
    save_tensors(tmp_path / "model.safetensors", tensors | tables)
    assert set(load_head("eagle3", tmp_path, dtype=torch.float32).state_dict()) >= set(tables)


def test_data_that_cannot_be_read_is_named_with_its_line(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"tokens": [1, 2], "answer_from": 1, "day": 3, "tenant": "x"}\n{"text": "a"}\n'
    )
    other = tmp_path / "b.jsonl"
    other.write_text("hello\n")
    texts = read_texts([path])
    assert next(texts) == Text(array("I", [1, 2]), 1, 3, "x")
    with pytest.raises(ValueError, match=r"a\.jsonl:2: no 'tokens'"):
        next(texts)
    with pytest.raises(ValueError, match=r"b\.jsonl:1: is no JSON; `forebay spec tokens` makes"):
        next(read_texts([other]))


def test_checkpoints_survive_all_types(tmp_path: Path):
    tensors = {
        "a": torch.randn(3, 5, dtype=torch.bfloat16),
        "b": torch.tensor([True, False, True]),
        "c": torch.arange(7),
        "d": torch.randn(2, 2, dtype=torch.float64),
        "e": torch.empty(0, 4),
    }
    save_tensors(tmp_path / "model.safetensors", tensors)
    for name, value in load_tensors(tmp_path).items():
        torch.testing.assert_close(value, tensors[name], rtol=0, atol=0)


def test_a_folder_that_holds_another_kind_of_head_is_named(target: Path, tmp_path: Path):
    MedusaHeads.beside(load_llama(target, dtype=torch.float32), 2).save(tmp_path)
    for method in ("eagle3", "eagle"):
        with pytest.raises(ValueError, match=f"holds no head of method '{method}', give its own"):
            load_head(method, tmp_path, dtype=torch.float32)


def test_files_that_are_no_checkpoint_are_named(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    for head, why in (
        (b'{"a": {"dtype": "F32"}}', "has a damaged head, copy it again"),
        (b"[1]", "has a damaged head, copy it again"),
        (
            b'{"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}',
            "a is of type F8_E4M3, there are F64",
        ),
    ):
        path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
        with pytest.raises(ValueError, match=why):
            load_tensors(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "llama", "vocab_size": 10})
    with pytest.raises(ValueError, match=r"config\.json has no number 'hidden_size'"):
        load_llama(tmp_path, dtype=torch.float32)


class Noting:
    """A method that also notes of each draft: its root's place, how many guesses, how many kept."""

    lossless, name = True, "noting"

    def __init__(self, method):
        self._method, self.features = method, method.features
        self.start, self.propose = method.start, method.propose
        self.notes = []

    def observe(self, row, told):
        root = len(row.tokens) - len(told.kept) - 2
        self.notes.append((root, told.draft.guesses(), len(told.kept)))
        self._method.observe(row, told)


def judged_right(head, model, tokens, root, guesses):
    """How many guesses in a row from a root training counts as right, in a text `[1, length]`."""
    places = torch.arange(tokens.shape[1])[None]
    hidden, kept = model(tokens, places, lambda _: causal, features=head.features)
    logits, right = model.logits(hidden), 0
    for step in range(guesses):
        learnt = torch.zeros_like(tokens, dtype=torch.bool)
        learnt[0, root + 1 + step] = True
        batch = Batch(tokens, learnt, kept or [hidden], logits)
        right += int(LOSSES[head.method](head, model, batch, unrolls=guesses)[1][step])
    return right


@pytest.mark.parametrize(("method", "steps"), [("eagle3", 40), ("eagle", 40), ("medusa", 80)])
def test_what_training_counts_as_right_is_what_an_engine_accepts(
    method: str, steps: int, target: Path, tmp_path: Path
):
    model, corpus = load_llama(target, dtype=torch.float32), Corpus([Text(TEXT)])
    recipe = Recipe(
        method=method, steps=steps, rows=8, length=32, lr=4e-3, unrolls=4, draft_vocab=14
    )
    Trainer(model, corpus, recipe, out=tmp_path).run(say=lambda _: None)
    head = load_head(method, tmp_path, dtype=torch.float32).requires_grad_(requires_grad=False)
    chain = [(0,) * n for n in range(1, 5)]
    drafter = Medusa(head, paths=chain) if method == "medusa" else Eagle(head, model, depth=4)
    accepted = []
    for start in range(0, 190, 19):
        noting, prompt = Noting(drafter), tuple(TEXT[start : start + 12])
        answer = Engine(model, noting).run([Request(prompt, 30)])[0]
        tokens = torch.tensor([[*prompt, *answer]])
        for root, guesses, kept in noting.notes:
            assert kept == judged_right(head, model, tokens, root, guesses)
            accepted.append(kept)
    assert 0 < sum(accepted) < 4 * len(accepted)
