# pyright: basic
# ruff: noqa: ANN001, ANN201
# (a script; what is passed around is said where it is made)
"""The drafter core: microseconds a row at long histories and a large store, and bytes a token.

Also how long a step takes at most while a long prompt is sorted beside it.

    python benchmarks/bench_drafter.py [--tokens N.tokens] [--store-tokens 10000000]

Without a file of tokens, text is made up by a Zipf law over 32,000 tokens with copied passages.
"""

import argparse
import random
import tempfile
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forebay.kernels.speculative.drafter import Drafter, History
from forebay.kernels.speculative.store import open_store, write_store


def text_of(count, seed):
    """Zipf tokens, a third of them copied from before in passages of 20 to 60."""
    rng = random.Random(seed)
    out = array("I")
    while len(out) < count:
        if len(out) > 1000 and rng.random() < 0.01:
            at = rng.randrange(len(out) - 100)
            out.extend(out[at : at + rng.randint(20, 60)])
        else:
            out.append(min(int(rng.paretovariate(0.7)), 31_999))
    return out[:count]


def measure(drafter, history, answer, kept):
    """Time settle, extend and propose for each step of `kept` new tokens; microseconds sorted."""
    times = []
    for at in range(0, len(answer) - kept, kept):
        new = answer[at : at + kept]
        started = time.perf_counter()
        drafter.settle(history, new)
        history.extend(new)
        drafter.propose(history)
        times.append((time.perf_counter() - started) * 1e6)
    return sorted(times)


def longest_step(prompt, answer):
    """Milliseconds of the longest step until the prompt is sorted, and how many steps that were."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        drafter = Drafter(most=8, background=beside.submit)
        history, times = History(array("I", prompt)), []
        for token in answer:
            started = time.perf_counter()
            history.extend([token])
            drafter.propose(history)
            times.append((time.perf_counter() - started) * 1e3)
            if history.prompt_contexts() is not None:
                break
            time.sleep(0.002)  # the model's turn
    return max(times), len(times)


def main():
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store-tokens", type=int, default=10_000_000)
    parser.add_argument("--history", type=int, default=100_000)
    arguments = parser.parse_args()
    text = text_of(arguments.store_tokens, 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.store"
        started = time.perf_counter()
        answers = ((0, text[at : at + 1000].tolist()) for at in range(0, len(text), 1000))
        head = write_store(path, answers, tokenizer="")
        size = path.stat().st_size
        spent = time.perf_counter() - started
        print(
            f"store: {head.tokens} tokens in {spent:.1f} s, {size / head.tokens:.2f} bytes a token"
        )
        contexts = open_store(path)[1]
        prompt = text_of(arguments.history, 1)
        for name, answer in (
            ("new text", text_of(6000, 2).tolist()),
            ("text of the store", text[500_000:506_000].tolist()),
            ("text of the prompt", prompt[5000:11_000].tolist()),
        ):
            history = History(array("I", prompt))
            started = time.perf_counter()
            history.prompt_contexts()
            first = (time.perf_counter() - started) * 1e3
            times = measure(Drafter(most=8, store=lambda: contexts), history, answer, 2)
            median, tail = times[len(times) // 2], times[int(len(times) * 0.99)]
            print(f"{name}: {median:.1f} us a row, p99 {tail:.1f}; the prompt once {first:.0f} ms")
        longest, steps = longest_step(prompt, text_of(3000, 2))
        print(f"beside {steps} steps the prompt is sorted, and the longest takes {longest:.1f} ms")


if __name__ == "__main__":
    main()
