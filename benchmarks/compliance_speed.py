"""Speed and memory of `compliance check`: a published log, and very long ones.

    python benchmarks/compliance_speed.py [--short] [--json] [LOG...]

A published log (those named, else result_0.txt of MLPerf v2.1 in PUBLISHED_LOGS): user CPU time of whole processes
beside mlperf-logging's compliance checker, alternating, the median of the repeats: at most 1.5 times. And logs of
1,000,000 lines, each event one that the rules name, or nearly all of them step windows: under a minute of CPU time and
1 GiB. `--short` only checks that it runs.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAX_TIMES = 1.5
MAX_S, MAX_MIB = 60.0, 1024.0
START_MS = 1_700_000_000_000
PUBLISHED = Path(os.environ.get("PUBLISHED_LOGS", ROOT.parent / "shared" / "logs"))


def mllog(key: str, time_ms: int, value: Any = None, **metadata: Any) -> str:
    kind = "INTERVAL_START" if key.endswith("_start") else "INTERVAL_END" if key.endswith("_stop") else "POINT_IN_TIME"
    where = {"file": "/workspace/harness/session.py", "lineno": 120}
    fields = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
    return f":::MLLOG {json.dumps(fields | {'metadata': where | metadata})}\n"


def opening() -> Iterator[str]:
    facts = {
        **{"submission_benchmark": "resnet", "submission_org": "Example", "submission_division": "closed"},
        **{"submission_status": "onprem", "submission_platform": "Example", "cache_clear": True, "init_start": None},
        **{"seed": 1, "global_batch_size": 3264, "gradient_accumulation_steps": 1, "opt_name": "lars"},
        **{"lars_epsilon": 0, "lars_opt_weight_decay": 5e-05, "lars_opt_momentum": 0.9},
        **{"lars_opt_base_learning_rate": 10.5, "lars_opt_end_learning_rate": 0.0001},
        **{"lars_opt_learning_rate_decay_poly_power": 2, "lars_opt_learning_rate_decay_steps": 14523},
        **{"lars_opt_learning_rate_warmup_epochs": 2, "train_samples": 1281167, "eval_samples": 50000},
        **{"init_stop": None, "run_start": None},
    }
    for key, value in facts.items():
        yield mllog(key, START_MS, value)


def long_log(lines: int, *, windows: bool) -> Iterator[str]:
    """A run of epochs, each with an evaluation; or one of 36 epochs, nearly all of it step windows."""
    yield from opening()
    in_epoch = lines // 36 if windows else 0
    epochs = 36 if windows else lines // 5
    value = {"steps": 10, "images": 2560, "time_s": 1.2345678, "data_wait_s": 0.0012, "loss": 6.1234}
    value |= {"gpu_memory_mib": 30123, "power_w": 312.5}
    for epoch in range(1, epochs + 1):
        yield mllog("epoch_start", START_MS, epoch_num=epoch)
        for step in range(in_epoch):
            yield mllog("step_window", START_MS, value, step=step, epoch_num=epoch, phase="train")
        yield mllog("epoch_stop", START_MS, epoch_num=epoch)
        yield mllog("eval_start", START_MS, epoch_num=epoch)
        yield mllog("eval_stop", START_MS, epoch_num=epoch)
        yield mllog("eval_accuracy", START_MS, 0.7604 if epoch == epochs else 0.5, epoch_num=epoch)
    yield mllog("run_stop", START_MS + 1, status="success")


def measure(command: list[str]) -> tuple[float, float]:
    """User CPU time in s and peak memory in MiB of a Python process. It may find something against the log."""
    # pip wrote the official tool's bytecode when it was installed; a first run may write ours
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = (
        "import runpy, sys, os, re, atexit\n"
        "def say():\n"
        "    peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]\n"
        "    print('measured', os.times().user, peak, file=sys.stderr)\n"
        "atexit.register(say)\n"
        "module, sys.argv[:] = sys.argv[1], sys.argv[1:]\n"
        "runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
    )
    command = [sys.executable, "-c", code, *command]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"^measured (\S+) (\d+)$", done.stderr, re.M)
    if found is None or done.returncode not in (0, 1):
        raise SystemExit(f"{command}: status {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return float(found[1]), int(found[2]) / 1024


def compare(log: Path, scratch: Path, repeats: int) -> float:
    """Return our user CPU time over the official checker's: the median of alternating runs."""
    official = ["mlperf_logging.compliance_checker", "--ruleset", "4.0.0", "--log_output", str(scratch / "official")]
    ours = ["compliance", "check", "--verdict", "official", str(log)]
    pairs = [(measure([*official, str(log)])[0], measure(ours)[0]) for _ in range(repeats)]
    return statistics.median(mine / theirs for theirs, mine in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small logs, one repeat: only checks that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG", help="published logs")
    options = parser.parse_args()
    lines = 10_000 if options.short else 1_000_000
    published = options.logs or [*PUBLISHED.glob("mlperf_v2.1_dgxa100_resnet/result_0.txt")]
    found: dict[str, Any] = {"lines": lines}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        found["times_official"] = {log.name: compare(log, scratch, 1 if options.short else 9) for log in published}
        for name, windows in (("events", False), ("step_windows", True)):
            with (scratch / name).open("w") as stream:
                stream.writelines(long_log(lines, windows=windows))
            cpu_s, mib = measure(["compliance", "check", str(scratch / name)])
            found[name] = {"cpu_s": cpu_s, "peak_mib": mib}
    slow = any(times > MAX_TIMES for times in found["times_official"].values())
    big = any(found[name]["cpu_s"] > MAX_S or found[name]["peak_mib"] > MAX_MIB for name in ("events", "step_windows"))
    found["met"] = options.short or not (slow or big)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for log, times in found["times_official"].items():
            print(f"{log}: {times:.2f} times the official checker's CPU time (wanted <= {MAX_TIMES})")
        for name in ("events", "step_windows"):
            cpu_s, mib = found[name].values()
            print(f"{lines} lines, {name}: {cpu_s:.1f} s, {mib:.0f} MiB (wanted < {MAX_S:g} s, {MAX_MIB:g} MiB)")
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
