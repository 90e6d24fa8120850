"""Shows that the default job reaches its target in time with any seed: one run for each of five seeds.

    python benchmarks/default_seeds.py [--workload hrnet] [--seeds 1 2 3 4 5] [--short]

Prints for each seed the epochs, the quality, the time from run_start to run_stop and the images/s. `--short` runs
nothing of the kind: it trains one tiny step, to show that the benchmark runs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import ratios

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import jobs

LIMIT_S = {"rn50": 240, "hrnet": 300}


def main() -> None:
    """Runs the seeds and prints the table."""
    parser = ratios.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--workload", choices=LIMIT_S, default="rn50")
    args = parser.parse_args()
    if args.short:
        with tempfile.TemporaryDirectory() as folder:
            done = jobs.run_and_time(LOGDIR=folder, WORKLOAD=args.workload, **jobs.TINY)
            assert done.returncode == 0, done.stderr
        return
    print("seed  epochs  quality time_s  images/s")
    times = []
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            done = jobs.run_and_time(LOGDIR=folder, WORKLOAD=args.workload, SEED=seed, PROGRESS="plain", timeout_s=900)
            log = Path(folder) / f"CPU/{args.workload}/result_0.txt"
            if done.returncode != 0:
                print(f"{seed:4}  failed: {done.stderr.strip()}")
                continue
            stamps = {e["key"]: e["time_ms"] for e in jobs.mllog(log) if e["key"] in ("run_start", "run_stop")}
            accuracy = jobs.values(log, "eval_accuracy")
            epochs = jobs.values(log, "epoch_throughput")
            rate = sum(e["images"] for e in epochs) / sum(e["time_s"] for e in epochs)
            times.append((stamps["run_stop"] - stamps["run_start"]) / 1000)
            print(f"{seed:4}  {len(accuracy):6}  {accuracy[-1]:.4f}  {times[-1]:6.1f}  {rate:8.1f}", flush=True)
    print(
        f"{len(times)} of {len(args.seeds)} reached the target; time median {statistics.median(times):.1f} s, "
        f"most {max(times):.1f} s, limit {LIMIT_S[args.workload]} s"
    )


if __name__ == "__main__":
    main()
