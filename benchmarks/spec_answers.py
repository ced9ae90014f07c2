# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN201, ANN202
# (scripts; what is passed around is said where it is made)
"""Have a target write on from passages of its training text, for heads to learn from.

A head is to guess what the target writes, not what people wrote: a user's own traffic is that
already, a corpus is not. DIR as spec_target.py leaves it; writes DIR/answers.tokens, passages with
their answers, of which every fourth round is drawn at temperature 0.7 and the rest is greedy.

    python benchmarks/spec_answers.py DIR --seconds 30
    python benchmarks/spec_answers.py DIR --of held_out.tokens --out held_answers.tokens --seconds 1
"""

import argparse
import time
from array import array
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own short name

from forebay.kernels.speculative.llama import load_llama


class Strip:
    """Keys and values of rows that are all equally long, layer by layer."""

    def __init__(self, config, *, rows, slots, like) -> None:
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, slots)
        self.kv = torch.empty(*shape, config.head_dim, dtype=like.dtype, device=like.device)
        self.length = 0

    def layer(self, number):
        """Attention of one layer: takes the new rows in and sees all before them."""

        def attend(q, k, v):
            end = self.length + q.shape[1]
            for side, new in enumerate((k, v)):
                self.kv[number, side, :, :, self.length : end] = new.transpose(1, 2)
            keys, values = self.kv[number, :, :, :, :end]
            if q.shape[1] == 1:  # query heads that share keys are rows of one read of these
                shape = (len(q), keys.shape[1], -1, q.shape[3])
                out = F.scaled_dot_product_attention(q[:, 0].view(shape), keys, values)
                return out.reshape(q.shape)
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True
            )
            return out.transpose(1, 2)

        return attend


@torch.no_grad()
def go_on(target, passages, *, most, temperature):
    """Return passages `[rows, length]` with `most` tokens more."""
    rows, length = passages.shape
    strip = Strip(target.config, rows=rows, slots=length + most, like=target.embed_tokens.weight)
    tokens, new = [passages], passages
    for _ in range(most):
        at = strip.length + torch.arange(new.shape[1], device=new.device)
        hidden, _ = target(new, at.expand(rows, -1), strip.layer)
        strip.length += new.shape[1]
        logits = target.logits(hidden[:, -1]).float()
        if temperature:
            noise = torch.empty_like(logits).exponential_().log_()
            logits = logits / temperature - noise
        new = logits.argmax(-1, keepdim=True)
        tokens.append(new)
    return torch.cat(tokens, 1)


def main():
    """Write rounds of answers until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--of", default="train.tokens", help="text to take passages from")
    parser.add_argument("--out", default="answers.tokens")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--most", type=int, default=256)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    target = load_llama(arguments.folder / "target", dtype=kind, device=device)
    raw = array("I", (arguments.folder / arguments.of).read_bytes())
    text = torch.frombuffer(raw, dtype=torch.int32).clone()
    text[text == -1] = 0
    rng, started, round_, kept = torch.Generator().manual_seed(3), time.perf_counter(), 0, 0
    with (arguments.folder / arguments.out).open("wb") as out:
        while not round_ or time.perf_counter() - started < arguments.seconds:
            size = (arguments.rows, 1)
            starts = torch.randint(len(text) - arguments.length, size, generator=rng)
            passages = text[starts + torch.arange(arguments.length)].long().to(device)
            temperature = 0.7 if round_ % 4 == 3 else 0.0
            found = go_on(target, passages, most=arguments.most, temperature=temperature)
            ends = torch.full((arguments.rows, 1), -1, dtype=torch.int32)
            told = torch.cat([found.int().cpu(), ends], 1)
            out.write(told.numpy().tobytes())
            round_, kept = round_ + 1, kept + arguments.rows * arguments.most
    print(f"{kept} tokens in {round_} rounds, {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
