"""Times single predictions: `python bench_length.py FOLDER [--weights DIR] [--long]`.

Wall and CPU time of one thread, each prompt read anew; then how many remembered ones a second. A
folder of sets as `forebay predictor` reads it; `--long`: prompts of over 1,200 characters only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from random import Random

import numpy as np

from forebay.gateway.commands.predictor_data import read_folder
from forebay.gateway.lengths import PoolLength, Readers
from forebay.gateway.weights import load_encoder


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", type=Path, help="of an encoder (those shipped)")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--times", type=int, default=1000)
    arguments = parser.parse_args()
    encoder, rng = load_encoder(arguments.weights), Random(0)
    examples = read_folder(arguments.folder, part="dev", wide=False).examples
    asks = list({example.key: example.features for example in examples}.values())
    asks = [each for each in asks if not arguments.long or len(each.text) > 1200]
    took: dict[str, list[float]] = {"wall_ms": [], "cpu_ms": []}
    for features in rng.choices(asks, k=arguments.times + 50):
        wall, cpu = time.perf_counter(), time.thread_time()
        encoder.predict([features])
        took["cpu_ms"].append((time.thread_time() - cpu) * 1000)
        took["wall_ms"].append((time.perf_counter() - wall) * 1000)
    told: dict[str, object] = {
        name: {"p50": round(p50, 3), "p99": round(p99, 3)}
        for name, times in took.items()
        for p50, p99 in [map(float, np.quantile(times[50:], (0.5, 0.99)))]
    }
    pool = PoolLength(Readers(encoder), pool="bench", budget=1.0)
    some = asks[:500]
    for each in some:
        pool.read(each)
    begun = time.thread_time()
    for _ in range(20):
        for each in some:
            pool.read(each)
    told["remembered_per_cpu_s"] = round(20 * len(some) / (time.thread_time() - begun))
    pool.close()
    print(json.dumps({**told, "load": os.getloadavg()[0], "long": arguments.long}))


if __name__ == "__main__":
    main()
