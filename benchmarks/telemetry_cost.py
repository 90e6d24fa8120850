"""What the sampler takes from a step: `python benchmarks/telemetry_cost.py [--short]`.

Two measures in one run: the sampler thread's own CPU time as a share of the time that it runs (it is this share of one
core at most), and a step of matrix products on all cores with the sampler and without, in turns. Limit: 0.5 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.hooks.telemetry import Sampler

LIMIT = 0.005
EVERY_S = 1.0  # TELEMETRY_S's default
SIDE = 1024


def _block_s(matrix: np.ndarray, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        matrix @ matrix
    return time.perf_counter() - began


def main() -> int:
    """Prints both shares."""
    parser = argparse.ArgumentParser(prog="python benchmarks/telemetry_cost.py", description=__doc__)
    parser.add_argument("--short", action="store_true", help="only check that it runs")
    args = parser.parse_args()
    repeats, block_s = (2, 0.2) if args.short else (12, 5.0)
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    _block_s(matrix, 3)
    steps = max(1, round(block_s / (_block_s(matrix, 10) / 10)))
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            times = {}
            for sampled in (True, False) if repeat % 2 else (False, True):
                if sampled:
                    with Sampler(Path(folder) / f"{repeat}.jsonl", every_s=EVERY_S, job_gpus=0) as sampler:
                        times[sampled] = _block_s(matrix, steps)
                    summary = sampler.summary()
                    shares.append(summary["sampler_cpu_s"] / summary["elapsed_s"])
                else:
                    times[sampled] = _block_s(matrix, steps)
            ratios.append(times[True] / times[False] - 1)
    print(f"sampler's CPU time: {100 * statistics.median(shares):.4f} % of one core (max {100 * max(shares):.4f} %)")
    low, high = 100 * min(ratios), 100 * max(ratios)
    print(
        f"step time with over without: {100 * statistics.median(ratios):+.3f} % "
        f"(median of {repeats}; {low:+.3f} to {high:+.3f})"
    )
    print(
        f"limit: {100 * LIMIT} %; one sample a {EVERY_S:g} s; GPUs sampled: none here"
        if not args.short
        else "short: not measured"
    )
    return 0 if args.short or statistics.median(shares) < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
