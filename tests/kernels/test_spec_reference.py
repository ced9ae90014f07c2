# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN003, ANN202, E402
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""The reference engine: whatever the method, the output is that of no speculation."""

import copy
import math
import random
from array import array

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")
# These models are so small that a second thread only waits for the first.
torch.set_num_threads(1)

from forebay.kernels.speculative.contexts import Contexts
from forebay.kernels.speculative.drafter import Drafter
from forebay.kernels.speculative.heads.eagle import Eagle1Head, Eagle3Head
from forebay.kernels.speculative.heads.losses import Unrolled, _shift
from forebay.kernels.speculative.heads.medusa import MedusaHeads
from forebay.kernels.speculative.llama import Llama, LlamaConfig, causal
from forebay.kernels.speculative.reference.draft import Draft, chain, tree_of
from forebay.kernels.speculative.reference.eagle import Eagle
from forebay.kernels.speculative.reference.engine import Engine, Plain, Request, Row, Verified
from forebay.kernels.speculative.reference.laws import (
    Sampling,
    branching,
    coins,
    coupled,
    draw,
    probabilities,
    rejection,
    without_return,
)
from forebay.kernels.speculative.reference.lookahead import Lookahead
from forebay.kernels.speculative.reference.lookup import (
    Combined,
    PromptLookup,
    Retrieval,
    Suffix,
)
from forebay.kernels.speculative.reference.medusa import DEFAULT_RIGHT, Medusa, rank_tree
from forebay.kernels.testing import DEVICE

VOCAB = 24
CONFIG = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=7,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def spread(module, std):
    """Random weights large enough that every token matters, in double precision."""
    rng = torch.Generator().manual_seed(0)
    for p in module.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=std, generator=rng)
    return module.double().eval().requires_grad_(requires_grad=False)


TARGET = spread(Llama(CONFIG), 0.25)


def eagle3():
    head = Eagle3Head(CONFIG, 20, layers=7)
    head.choose_vocab(torch.arange(VOCAB, 0, -1))
    return spread(head, 0.2)


def store():
    rng = random.Random(0)
    return Contexts.of(array("I", [rng.randrange(VOCAB) for _ in range(2000)]))


METHODS = {
    "prompt-lookup": PromptLookup,
    "suffix": Suffix,
    "rest": lambda: Retrieval(store()),
    "combined": lambda: Combined(Drafter(most=6, min_match=1, store=store)),
    "lookahead": lambda: Lookahead(columns=5, size=3),
    "medusa": lambda: Medusa(MedusaHeads.beside(TARGET, 4).double()),
    "eagle": lambda: Eagle(spread(Eagle1Head(CONFIG), 0.2), TARGET, depth=4),
    "eagle-2": lambda: Eagle(spread(Eagle1Head(CONFIG), 0.2), TARGET, depth=3, width=3, nodes=10),
    "eagle-3": lambda: Eagle(eagle3(), TARGET, depth=4),
    "eagle-3-tree": lambda: Eagle(eagle3(), TARGET, depth=3, width=3, nodes=10),
}


def requests(count, most, *, seed=0, **sampling):
    rng = random.Random(seed)
    return [
        Request(
            tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))),
            most,
            Sampling(seed=number, **sampling),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", METHODS)
def test_greedy_output_is_identical_over_200_prompts(name: str):
    asked = requests(200, 10)
    engine = Engine(TARGET, METHODS[name]())
    assert engine.run(asked) == Engine(TARGET, Plain()).run(asked)
    assert engine.counts.guesses > 0


@pytest.mark.parametrize("name", METHODS)
def test_sampled_output_is_identical_too_number_for_number(name: str):
    asked = requests(24, 12, temperature=0.8, top_p=0.9, top_k=12)
    assert Engine(TARGET, METHODS[name]()).run(asked) == Engine(TARGET, Plain()).run(asked)


@pytest.mark.parametrize("name", METHODS)
def test_a_request_does_not_depend_on_its_batch(name: str):
    asked = requests(5, 12, temperature=0.7)
    together = Engine(TARGET, METHODS[name]()).run(asked)
    assert [Engine(TARGET, METHODS[name]()).run([each])[0] for each in asked] == together


@pytest.mark.parametrize("name", METHODS)
def test_ends_inside_a_draft_end_the_answer_there(name: str):
    base = Engine(TARGET, Plain()).run(requests(12, 14))
    asked, wanted = [], []
    for number, (request, answer) in enumerate(zip(requests(12, 14), base, strict=True)):
        cut = number % 5 + 2
        if number % 3 == 0:
            asked.append(Request(request.prompt, cut, request.sampling))
            wanted.append(answer[:cut])
        elif number % 3 == 1:
            asked.append(Request(request.prompt, 14, request.sampling, end=answer[cut]))
            wanted.append(answer[: answer.index(answer[cut]) + 1])
        else:
            stop = tuple(answer[cut : cut + 2])
            asked.append(Request(request.prompt, 14, request.sampling, stop=(stop,)))
            first = next(at for at in range(14) if tuple(answer[at : at + 2]) == stop)
            wanted.append(answer[: first + 2])
    assert Engine(TARGET, METHODS[name]()).run(asked) == wanted


@pytest.mark.parametrize("name", ["suffix", "medusa", "eagle-3-tree", "lookahead"])
def test_penalties_follow_each_path_of_a_draft(name: str):
    def adjust(tokens, logits):
        seen = torch.bincount(torch.tensor(tokens), minlength=VOCAB)
        return logits - 0.7 * seen.to(logits.dtype)

    asked = [
        Request(each.prompt, 14, each.sampling, adjust=adjust)
        for each in requests(10, 14, temperature=0.6)
    ]
    assert Engine(TARGET, METHODS[name]()).run(asked) == Engine(TARGET, Plain()).run(asked)


def test_a_lossy_method_is_refused_unless_it_is_asked_for():
    typical = Medusa(MedusaHeads.beside(TARGET, 3).double(), typical=True)
    with pytest.raises(ValueError, match="lossy=True"):
        Engine(TARGET, typical)
    assert Engine(TARGET, typical, lossy=True).run(requests(3, 8))


def test_a_head_drafts_as_it_was_trained_to():
    """A chain's states are those of training's unrolls at the same place."""
    head = spread(Eagle3Head(CONFIG, VOCAB, layers=7), 0.2)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
    places = torch.arange(12)[None]
    hidden, states = TARGET(tokens, places, lambda _: causal, features=head.features)
    embeds, attend, feature = TARGET.embed_tokens(tokens), Unrolled(), head.first_features(states)
    wanted = []
    for step in range(4):
        feature = head(_shift(embeds, step + 1), feature, places + step, attend)
        wanted.append(feature[0, 5])
    method = Eagle(head, TARGET, depth=4)
    row = Row(Request(tuple(tokens[0, :6].tolist()), 20), tokens[0, :7].tolist())
    draft = chain(0, [0] * 5)
    told = Verified(draft, hidden[0, :6], hidden[0, :6], [s[0, :6] for s in states], [*range(1, 6)])
    method.start(row, told)
    got = [row.state.state]
    for step in range(3):
        got.append(method._step(row.state, int(tokens[0, 7 + step]), got[-1], step=step))
    torch.testing.assert_close(torch.stack(got), torch.stack(wanted), rtol=1e-4, atol=1e-4)


def test_a_tree_of_ranks_has_parents_first_and_takes_the_likeliest():
    paths = rank_tree(DEFAULT_RIGHT[:3], 12)
    assert len(paths) == len(set(paths)) == 12
    assert all(path[:-1] in paths[:number] for number, path in enumerate(paths) if len(path) > 1)
    chance = {p: math.prod(DEFAULT_RIGHT[d][r] for d, r in enumerate(p)) for p in paths}
    assert sorted(chance.values(), reverse=True) == pytest.approx(list(chance.values()))


def test_branches_share_what_they_begin_with():
    draft = tree_of(9, [[1, 2], [1, 3], [4]], most=4)
    assert (draft.tokens, draft.parents) == ([9, 1, 2, 3], [-1, 0, 1, 1])
    assert [bin(bits) for bits in draft.sees] == ["0b1", "0b11", "0b111", "0b1011"]


# The law of the output, on small vocabularies.

TRIALS = 20_000


def law_of(sample, size):
    """Frequencies of what `sample(coin)` returns."""
    heard = torch.zeros(size, dtype=torch.float64)
    for trial in range(TRIALS):
        heard[sample(coins(trial))] += 1
    return heard


def assert_law(heard, p):
    """Chi-square with a p-value over 1e-3 (Wilson and Hilferty), and total variation in bounds."""
    kept = p > 1e-12
    assert float(heard[~kept].sum()) == 0
    wanted = p[kept] * heard.sum()
    freedom = int(kept.sum()) - 1
    if freedom:
        chi = float(((heard[kept] - wanted) ** 2 / wanted).sum())
        bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
        assert chi < bound
    apart = 0.5 * float((heard / heard.sum() - p).abs().sum())
    assert apart < 3 * math.sqrt(len(p) / float(heard.sum()))


def laws(kind, size=8):
    """A target's and a drafter's distribution: apart at random, equal, disjoint, adversarial."""
    rng = torch.Generator().manual_seed(len(kind))
    p = torch.rand(size, generator=rng, dtype=torch.float64) ** 3
    q = torch.rand(size, generator=rng, dtype=torch.float64) ** 3
    if kind == "equal":
        q = p.clone()
    elif kind == "disjoint":
        p[: size // 2], q[size // 2 :] = 0, 0
    elif kind == "adversarial":
        q = (p.max() - p) ** 4 + 1e-9
    return p / p.sum(), q / q.sum()


KINDS = ["random", "equal", "disjoint", "adversarial"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_drawn_from_a_drafter_yields_the_targets_law(kind: str):
    p, q = laws(kind)
    second = torch.stack([p.roll(shift) for shift in range(len(p))])

    def sample(coin):
        token = draw(q, coin(0, "draft"))
        other = draw(q, coin(1, "draft"))
        draft = chain(0, [token, other])
        draft.chances = torch.stack([q, q])
        kept, last = rejection(
            draft, lambda row: p if row == 0 else second[token], place=0, coin=coin
        )
        out = [*(draft.tokens[each] for each in kept), last]
        if len(out) == 1:
            out.append(draw(second[out[0]], coin(1, "next")))
        return out[0] * len(p) + out[1]

    assert_law(law_of(sample, len(p) ** 2), (p[:, None] * second).flatten())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [branching, without_return])
def test_several_draws_for_one_place_yield_the_targets_law(kind: str, rule):
    p, q = laws(kind)

    def sample(coin):
        left, tokens = q.clone(), []
        for number in range(3):
            if float(left.sum()) <= 0:
                break
            tokens.append(draw(left, coin(number, "draft")))
            if rule is without_return:
                left[tokens[-1]] = 0
        return rule(tokens, p, q, coin=lambda use: coin(0, use))[1]

    assert_law(law_of(sample, len(p)), p)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_that_was_not_drawn_yields_the_targets_law(kind: str):
    p, q = laws(kind)
    likely = q.argsort(descending=True)[:3].tolist()
    second = torch.stack([p.roll(shift) for shift in range(len(p))])
    draft = tree_of(0, [[t, u] for t in likely for u in likely])

    def p_of(row):
        return p if row == 0 else second[draft.tokens[row]]

    def sample(coin):
        kept, last = coupled(draft, p_of, place=0, coin=coin)
        out = [*(draft.tokens[each] for each in kept), last]
        if len(out) == 1:
            out.append(draw(second[out[0]], coin(1, "token")))
        return out[0] * len(p) + out[1]

    assert_law(law_of(sample, len(p) ** 2), (p[:, None] * second).flatten())


def test_the_rejection_kernel_in_the_engine_yields_the_targets_law():
    pytest.importorskip("triton", reason="the kernel needs triton")
    prompt, vocab = (3, 1, 4), range(VOCAB)
    asked = [Request(prompt, 3, Sampling(temperature=1.0, seed=seed)) for seed in range(150)]
    there = copy.deepcopy(TARGET).to(DEVICE)
    head = eagle3().to(DEVICE)
    engine = Engine(there, Eagle(head, there, depth=2, sampled=True), kernel=True)
    heard = torch.bincount(
        torch.tensor([answer[1] for answer in engine.run(asked)]), minlength=VOCAB
    )

    def law(tokens):
        places = torch.arange(len(tokens))[None]
        hidden, _ = TARGET(torch.tensor([tokens]), places, lambda _: causal)
        return TARGET.logits(hidden)[0, -1].softmax(-1)

    p = sum(law(prompt)[first] * law((*prompt, first)) for first in vocab)
    assert 0 < engine.counts.accepted < engine.counts.guesses
    assert_law(heard.double(), p)


def test_equal_laws_accept_every_draw_and_an_impossible_token_is_never_accepted():
    p, q = laws("equal")
    kept = 0
    for trial in range(500):
        coin = coins(trial)
        draft = chain(0, [draw(q, coin(0, "draft"))])
        draft.chances = q[None]
        kept += len(rejection(draft, lambda _: p, place=0, coin=coin)[0])
    assert kept == 500
    p, q = laws("disjoint")
    for trial in range(500):
        coin = coins(trial)
        draft = chain(0, [draw(q, coin(0, "draft"))])
        draft.chances = q[None]
        assert rejection(draft, lambda _: p, place=0, coin=coin)[0] == []
        assert coupled(Draft.of(0), lambda _: p, place=0, coin=coin)[0] == []


def test_filters_keep_what_they_say():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    p = logits.double().softmax(-1)
    assert probabilities(logits, Sampling()).tolist() == [1, 0, 0, 0]
    two = probabilities(logits, Sampling(temperature=1, top_k=2))
    torch.testing.assert_close(two, p * torch.tensor([1, 1, 0, 0]) / p[:2].sum())
    assert probabilities(logits, Sampling(temperature=1, top_p=0.1)).tolist() == [1, 0, 0, 0]
    assert probabilities(logits, Sampling(temperature=1, top_p=0.0)).tolist() == [1, 0, 0, 0]
