# pyright: basic, reportMissingImports=false
# (torch and tokenizers are not installed where types are checked)
# ruff: noqa: ANN001, ANN201, ANN202, PLC0415, PLR0915
# (scripts; what is passed around is said where it is made)
"""Train a small Llama on the Python sources of this machine, with some packages held out.

For measuring speculation where no weights can be had: a real model of real text. Writes OUT/target
(a checkpoint that engines load), OUT/train.tokens and OUT/held_out.tokens (raw 32-bit tokens), and
with --pack OUT/target.pack, the weights in 7 bits and deflated. The checkpoint then holds those
very weights, so a head trained on it fits whoever unpacks them.

    python benchmarks/spec_target.py OUT --seconds 100
    python benchmarks/spec_target.py OUT --unpack        # OUT/target.pack to OUT/target
"""

import argparse
import hashlib
import json
import math
import sysconfig
import time
import zlib
from array import array
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own short name

from forebay.kernels.speculative.checkpoint import save_tensors, write_json
from forebay.kernels.speculative.llama import Llama, LlamaConfig, causal

HELD_OUT = {"sympy", "networkx", "httpx", "seaborn", "optax", "statsmodels"}
END = 0
SEPARATOR = 0xFFFFFFFF


def sources(limit):
    """Texts of .py files: of packages to learn from, and of those held out; no file twice."""
    kept, held, seen, size, other = [], [], set(), 0, 0
    roots = [sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")]
    files = sorted(
        {path for root in roots for path in Path(root).rglob("*.py")},
        key=lambda p: hashlib.md5(str(p).encode()).digest(),
    )
    for path in files:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        mark = hashlib.md5(text.encode()).digest()
        if len(text) < 400 or mark in seen:
            continue
        seen.add(mark)
        if HELD_OUT & set(path.parts):
            if other < limit / 15:
                held.append(text)
                other += len(text)
        elif size < limit:
            kept.append(text)
            size += len(text)
    return kept, held


def make_tokenizer(texts, vocab):
    """Byte-level BPE over a sample."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    how = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts[:: max(1, len(texts) // 3000)], how)
    return made


def encode(tokenizer, texts):
    """Tokens of each text as array('I'), in chunks so that memory stays small."""
    for at in range(0, len(texts), 2000):
        for told in tokenizer.encode_batch_fast(texts[at : at + 2000]):
            yield array("I", told.ids)


def write_tokens(path, texts):
    """Raw tokens with separators; returns them with end tokens in their place."""
    raw = array("I")
    for each in texts:
        raw.extend(each)
        raw.append(SEPARATOR)
    path.write_bytes(raw.tobytes())
    ids = torch.frombuffer(raw, dtype=torch.int32).clone()
    ids[ids == -1] = END
    return ids


def train(model, ids, arguments):
    """AdamW with warm-up and cosine over the time there is."""
    device = next(model.parameters()).device
    rows, length = arguments.rows, arguments.length
    places = torch.arange(length, device=device).expand(rows, length)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    cuda = device.type == "cuda"
    optimiser = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=arguments.lr, betas=(0.9, 0.95), fused=cuda,
    )  # fmt: skip
    if cuda:
        torch.set_float32_matmul_precision("high")
        for layer in model.layers:
            layer.compile()
    ids = ids.to(device)
    rng = torch.Generator(device=device).manual_seed(0)

    def loss_of():
        at = torch.randint(
            len(ids) - length - 1, (rows, 1), generator=rng, device=device
        ) + torch.arange(length + 1, device=device)
        window = ids[at].long()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            hidden, _ = model(window[:, :-1], places, lambda _: causal)
            return F.cross_entropy(model.logits(hidden).flatten(0, 1), window[:, 1:].flatten())

    started, step, compiled = time.perf_counter(), 0, None
    while True:
        spent = time.perf_counter() - (compiled or started)
        done = spent / arguments.seconds if compiled else 0.0
        if done >= 1:
            break
        lr = (
            arguments.lr
            * min(1.0, (step + 1) / 100)
            * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        )
        for group in optimiser.param_groups:
            group["lr"] = lr
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        if step == 3:
            float(loss.detach())
            compiled = time.perf_counter()
            print("compiled in", round(compiled - started, 1), flush=True)
        if step % 10 == 0:
            last = float(loss.detach())
            if step % 100 == 0:
                print("step", step, "loss", round(last, 3), "seconds", round(spent, 1), flush=True)
    return {"steps": step, "tokens": step * rows * length, "loss": last, "seconds": spent}


def pack(tensors):
    """Weights in 7 bits with a scale for each row, norms as they are; and what they then are."""
    rounded, parts, head = {}, [], []
    for name, tensor in tensors.items():
        value = tensor.detach().float().cpu()
        if value.ndim < 2:
            raw = bytearray(value.numel() * 4)
            torch.frombuffer(raw, dtype=torch.float32).copy_(value)
            head.append([name, list(value.shape), None])
            parts.append(bytes(raw))
            rounded[name] = value
            continue
        scale = (value.abs().amax(1, keepdim=True) / 63).clamp(min=1e-9).half().float()
        level = (value / scale).round().clamp(-63, 63)
        rounded[name] = (level * scale).bfloat16()
        raw = bytearray(value.numel() + value.shape[0] * 2)
        torch.frombuffer(raw, dtype=torch.int8, count=value.numel()).copy_(
            level.flatten().to(torch.int8)
        )
        torch.frombuffer(raw, dtype=torch.float16, offset=value.numel()).copy_(
            scale.flatten().half()
        )
        head.append([name, list(value.shape), 7])
        parts.append(bytes(raw))
    told = json.dumps(head).encode()
    # Deflate's Huffman codes alone: there is nothing to match in weights.
    squeeze = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    body = b"".join(squeeze.compress(part) for part in parts) + squeeze.flush()
    return rounded, len(told).to_bytes(4, "little") + told + body


def unpack(raw):
    """Undo `pack`."""
    size = int.from_bytes(raw[:4], "little")
    head, body = json.loads(raw[4 : 4 + size]), bytearray(zlib.decompress(raw[4 + size :], -15))
    tensors, at = {}, 0
    for name, shape, bits in head:
        count = math.prod(shape)
        if bits is None:
            tensors[name] = (
                torch.frombuffer(body, dtype=torch.float32, count=count, offset=at)
                .clone()
                .view(shape)
            )
            at += count * 4
            continue
        level = torch.frombuffer(body, dtype=torch.int8, count=count, offset=at).float().view(shape)
        scale = torch.frombuffer(
            body[at + count : at + count + shape[0] * 2], dtype=torch.float16
        ).float()
        tensors[name] = (level * scale[:, None]).bfloat16()
        at += count + shape[0] * 2
    return tensors


def write_target(folder, config, tensors):
    """Write the checkpoint under Hugging Face's names."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {
        (f"model.{n}" if not n.startswith("lm_head") else n): v
        for n, v in tensors.items()
        if n != "lm_head.weight" or not config.tie_word_embeddings
    }
    save_tensors(folder / "model.safetensors", {n: v.bfloat16() for n, v in named.items()})
    write_json(folder / "config.json", config.told(bos_token_id=END, eos_token_id=END))


def main():
    """Train, or unpack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--bytes", type=int, default=400_000_000)
    parser.add_argument("--unpack", action="store_true")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=arguments.vocab, hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 11 // 4,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // arguments.head_dim,
        num_key_value_heads=arguments.hidden // arguments.head_dim // 2,
        head_dim=arguments.head_dim, tie_word_embeddings=True,
        max_position_embeddings=2048,
    )  # fmt: skip
    if arguments.unpack:
        told = json.loads((out / "target.json").read_text())
        config = LlamaConfig.of(told["config"])
        write_target(out / "target", config, unpack((out / "target.pack").read_bytes()))
        return
    started = time.perf_counter()
    kept, held = sources(arguments.bytes)
    print(
        "files",
        len(kept),
        len(held),
        "MB",
        sum(map(len, kept)) / 1e6,
        round(time.perf_counter() - started, 1),
        flush=True,
    )
    tokenizer = make_tokenizer(kept, arguments.vocab)
    (out / "target").mkdir(exist_ok=True)
    tokenizer.save(str(out / "target" / "tokenizer.json"))
    held_ids = write_tokens(out / "held_out.tokens", encode(tokenizer, held))
    ids = write_tokens(out / "train.tokens", encode(tokenizer, kept))
    print("tokens", len(ids), len(held_ids), round(time.perf_counter() - started, 1), flush=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Llama(config)
    for name, p in model.named_parameters():
        if p.ndim > 1:
            std = 0.02 / (
                math.sqrt(2 * config.num_hidden_layers)
                if "o_proj" in name or "down_proj" in name
                else 1
            )
            torch.nn.init.normal_(p, std=std)
    model = model.to(device)
    told = train(model, ids, arguments)
    tensors = dict(model.named_parameters())
    rounded, packed = pack(tensors)
    (out / "target.pack").write_bytes(packed)
    write_target(out / "target", config, rounded)
    with torch.no_grad():
        model.load_state_dict({n: v.to(device) for n, v in rounded.items()}, strict=False)
        sums = []
        for at in range(0, min(len(held_ids) - 1025, 64 * 1024), 1024):
            window = held_ids[at : at + 1025].long().to(device)[None]
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                hidden, _ = model(
                    window[:, :-1], torch.arange(1024, device=device)[None], lambda _: causal
                )
                sums.append(float(F.cross_entropy(model.logits(hidden)[0].float(), window[0, 1:])))
    told |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_tokens_in_corpus": len(ids), "packed_bytes": len(packed),
        "held_out_loss": sum(sums) / len(sums),
        "held_out_packages": sorted(HELD_OUT), "config": config.told(),
    }  # fmt: skip
    write_json(out / "target.json", told)
    print(json.dumps({k: v for k, v in told.items() if k != "config"}), flush=True)


if __name__ == "__main__":
    main()
