"""Measures what the sampler takes from a step: `python benchmarks/telemetry_cost.py [--repeats N] [--short]`.

Two measures in one run: the sampler thread's own CPU time as a share of the time that it runs (it is this share of one
core at most), and a step of matrix products on all cores with the sampler and without, in turns. Limit: 0.5 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.hooks.telemetry import Sampler

LIMIT = 0.005
EVERY_S = 1.0  # TELEMETRY_S's default
SIDE = 1024


def main() -> int:
    """Prints both shares."""
    args = ratios.parser(__doc__).parse_args()
    block_s = 0.2 if args.short else 5.0
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)

    def rate(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            matrix @ matrix
        return steps / (time.perf_counter() - began)

    rate(3)
    steps = max(1, round(block_s * rate(10)))
    shares: list[float] = []  # of a CPU that sampling took
    with tempfile.TemporaryDirectory() as folder:

        def sampled() -> float:
            with Sampler(Path(folder) / f"{len(shares)}.jsonl", every_s=EVERY_S, job_gpus=0) as sampler:
                found = rate(steps)
            summary = sampler.summary()
            shares.append(summary["sampler_cpu_s"] / summary["elapsed_s"])
            return found

        ways = {"with the sampler": sampled, "without": lambda: rate(steps)}
        rates = ratios.take_turns(ways, 1 if args.short else args.repeats)
    ratios.report(rates, "with the sampler", {"without": 1 - LIMIT}, "steps/s")
    share = statistics.median(shares)
    print(f"sampler's CPU time: {share:.4%} of one core (at most {max(shares):.4%}), limit {LIMIT:.1%}; no GPU sampled")
    return 0 if args.short or share < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
