"""Measures what a checkpoint takes from training: `python benchmarks/checkpoint_cost.py [--repeats N] [--short]`.

The state is as large as ResNet-50's with momentum (2 x 25.6 M parameters). A step (matrix products) goes on while the
thread writes. Shown beside each other in one run: what training waits for a checkpoint (the copy to host memory), by
how much the thread slows it, and what the disk takes, for which a save in the step would wait. Limit: 1 % of an
epoch of ImageNet at the highest throughput published for Paddle on one node, with a checkpoint each epoch.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.hooks import checkpoint_file
from program.arrays import Array

PARAMETERS = 25_557_032
LIMIT = 0.01
IMAGES = 1_281_167  # of ImageNet; both throughputs are in scoring/published/published.csv
TIMES_S = {
    "an epoch of ImageNet at 23,874 images/s (NVIDIA's Paddle, DGX A100)": IMAGES / 23_874,
    "an epoch of ImageNet at 353.77 images/s (DLPerf's Paddle, one V100)": IMAGES / 353.77,
    "CHECKPOINT_MINUTES' default": 15 * 60.0,
}


def main() -> int:
    """Prints seconds and shares."""
    args = ratios.parser(__doc__).parse_args()
    size, repeats = (PARAMETERS // 100, 2) if args.short else (PARAMETERS, args.repeats)
    rng = np.random.default_rng(0)
    state = {name: rng.standard_normal(size, dtype=np.float32) for name in ("parameters", "momentum")}
    matrix = rng.standard_normal((512, 512)).astype(np.float32)
    copies, writes, slowed = [], [], []
    copied: dict[str, Array] = {}  # kept from one to the next, as harness.hooks.checkpoint does
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for repeat in range(repeats):
            began = time.perf_counter()
            for name, value in state.items():
                np.copyto(copied.setdefault(name, np.empty_like(value)), value)
            copies.append(time.perf_counter() - began)
            path = Path(folder) / f"{repeat}.safetensors"
            thread = threading.Thread(target=checkpoint_file.write, args=(path, copied, {"position": {"step": repeat}}))
            began, steps = time.perf_counter(), 0
            thread.start()
            while thread.is_alive():
                _ = matrix @ matrix
                steps += 1
            writes.append(time.perf_counter() - began)
            began = time.perf_counter()
            for _ in range(steps):
                _ = matrix @ matrix
            slowed.append(writes[-1] - (time.perf_counter() - began))
            path.unlink()
    waits = [copy + max(0.0, slow) for copy, slow in zip(copies, slowed, strict=True)]

    def line(name: str, values: list[float]) -> None:
        print(
            f"{name}: {statistics.median(values):.3f} s (median of {repeats}; {min(values):.3f} to {max(values):.3f})"
        )

    line("training waits (copy)", copies)
    line("training is slowed while the thread writes", slowed)
    line("the thread writes, while training goes on", writes)
    wait_s = statistics.median(waits)
    print(f"together {wait_s:.3f} s: under {100 * LIMIT:g} % of whatever lasts over {wait_s / LIMIT:.0f} s")
    for name, time_s in TIMES_S.items():
        print(f"  {100 * wait_s / time_s:.3f} % of {name}, {time_s:.0f} s")
    return 0 if args.short or wait_s < LIMIT * min(TIMES_S.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
