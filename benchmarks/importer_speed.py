"""Speed and memory of the importers, beside the limits that they must keep.

    python benchmarks/importer_speed.py [--mb 100] [--repeats 3] [--short] [--json]

Two logs of each format, made by the writers of the tests: "dense", in which every line is a row, the worst that a log
can be; and "mixed", in which nine of ten lines are other text of a job. Each is recognised, read and scored as
`python -m scoring score` does it, in a process of its own on one core; the fastest of the repeats counts, and the
range is printed. Limits: at least 10 MB/s, at most 150 MB of memory. `--short` only checks that it runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_MB_PER_S = 10.0
MOST_MEMORY_MB = 150.0
NOISE = (
    "W0602 16:17:05.160576  2674 gpu_context.cc:278] Please NOTE: device: 0, GPU Compute Capability: 7.0\n"
    "/usr/local/lib/python3.7/dist-packages/scipy/sparse/sputils.py:23: DeprecationWarning: np.typeDict is old\n"
    "  supported_dtypes = [np.typeDict[x] for x in supported_dtypes]\n"
)
MEASURE = """
import json, os, re, sys, time
from pathlib import Path
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
started = time.perf_counter(), time.process_time()
from scoring.importers import read_record
from scoring.figure.protocols import find
from scoring.figure.score import score
record = read_record(sys.argv[1], devices=8, batch_per_device=32)
score([record], find("perf"))
wall_s, cpu_s = time.perf_counter() - started[0], time.process_time() - started[1]
# VmHWM: ru_maxrss would include the parent's, before exec
memory_mb = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6
print(json.dumps([wall_s, cpu_s, memory_mb, sum(window.rows for window in record.windows)]))
"""


def write(path: Path, name: str, *, dense: bool, megabytes: float) -> None:
    """One run's log of about that size, a row a step."""
    from scoring.importers import FORMATS
    from tests.scoring import samples

    def text(steps: int) -> str:
        return samples.WRITERS[name](samples.run_of(samples.steady(steps), epoch_steps=1000, every=1))

    noise = 0 if dense else len(NOISE) * 3
    steps = max(2000, round(megabytes * 1e6 / (len(text(2000)) / 2000 + noise)))
    with path.open("w") as out:
        for line in text(steps).splitlines(keepends=True):
            is_row = '"step_window"' in line if name == "mllog" else FORMATS[name].row.search(line) is not None
            out.write(line + NOISE * 3 if is_row and not dense else line)


def measured(path: Path, repeats: int) -> dict[str, float | list[float]]:
    """Wall time of whole reads, in MB/s, and the peak memory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    size_mb = path.stat().st_size / 1e6
    rates, cpu_rates, memory, rows = [], [], 0.0, 0
    for _ in range(repeats):
        command = [sys.executable, "-c", MEASURE, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        wall_s, cpu_s, memory_mb, rows = json.loads(done.stdout)
        rates.append(size_mb / wall_s)
        cpu_rates.append(size_mb / cpu_s)
        memory = max(memory, memory_mb)
    return {
        "size_mb": size_mb,
        "rows": rows,
        "mb_per_s": max(rates),
        "mb_per_s_range": [min(rates), max(rates)],
        "mb_per_cpu_s": max(cpu_rates),
        "memory_mb": memory,
        "times_limit": max(rates) / LEAST_MB_PER_S,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100, help="size of each log")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", help="only these, separated by commas")
    parser.add_argument("--short", action="store_true", help="small logs, once: only shows that it runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.short:
        args.mb, args.repeats = 1, 1
    sys.path.insert(0, str(ROOT))
    from tests.scoring import samples

    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.formats.split(",") if args.formats else sorted(samples.WRITERS):
            for kind in ("dense", "mixed"):
                path = Path(folder) / "a.log"
                write(path, name, dense=kind == "dense", megabytes=args.mb)
                result = {"format": name, "kind": kind, **measured(path, args.repeats)}
                results.append(result)
                if not args.json:
                    low, high = result["mb_per_s_range"]
                    print(
                        f"{name:19} {kind:6} {result['rows']:9} rows  {result['mb_per_s']:6.1f} MB/s "
                        f"({low:.1f} to {high:.1f}), {result['times_limit']:.2f} x the limit; "
                        f"{result['mb_per_cpu_s']:6.1f} MB per CPU second; {result['memory_mb']:5.0f} MB of memory",
                        flush=True,
                    )
                path.unlink()
    if args.json:
        print(json.dumps(results, indent=1))
    if args.short:
        return 0
    slow = [r for r in results if r["mb_per_s"] < LEAST_MB_PER_S or r["memory_mb"] > MOST_MEMORY_MB]
    for result in slow:
        print(f"over the limit: {result['format']} {result['kind']}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
