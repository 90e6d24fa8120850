"""Speed and memory of `compliance check` beside mlperf-logging's compliance checker, in one run.

    python benchmarks/compliance_speed.py [--short] [--json]

Ratios of user CPU times of whole processes, alternating, the median of the repeats with its range: logs of 400,000
lines of this project's kind (step windows), of MLPerf's (epochs and evaluations that the rules look at), and with a
breach on every line (times that go backwards, an accuracy that is no number, a hyperparameter that the rules forbid,
no metadata): at least 5 times the official checker's speed; a log of one short run: at most 1.5 times its time. And the
peak memory at 5,000,000 lines: under 150 MiB. `--short` only checks that it runs.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEAST_SPEEDUP = 5.0
MOST_SLOWDOWN = 1.5
MOST_MEMORY_MIB = 150.0
START_MS = 1_700_000_000_000


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


def step_windows(lines: int) -> Iterator[str]:
    """A run of 36 epochs in our own form: nearly all events are step windows."""
    yield from opening()
    for block in range(9):
        yield mllog("block_start", START_MS, first_epoch_num=4 * block + 1, epoch_count=4)
        for epoch in range(4 * block + 1, 4 * block + 5):
            yield mllog("epoch_start", START_MS, epoch_num=epoch)
            for step in range(lines // 72):
                value = {"steps": 10, "images": 2560, "time_s": 1.2345678, "data_wait_s": 0.0012, "loss": 6.1234}
                value |= {"gpu_memory_mib": 30123, "power_w": 312.5}
                yield f"epoch {epoch} step {step} loss 6.1234 2073.6 images/s\n"
                yield mllog("step_window", START_MS, value, step=step, epoch_num=epoch, phase="train")
            yield mllog("epoch_stop", START_MS, epoch_num=epoch)
        yield from evaluation(4 * block + 4, 0.7604 if block == 8 else 0.5)
        yield mllog("block_stop", START_MS, first_epoch_num=4 * block + 1)
    yield mllog("run_stop", START_MS + 1, status="success")


def evaluation(epoch: int, accuracy: float) -> Iterator[str]:
    yield mllog("eval_start", START_MS, epoch_num=epoch)
    yield mllog("eval_stop", START_MS, epoch_num=epoch)
    yield mllog("eval_accuracy", START_MS, accuracy, epoch_num=epoch)


def epochs(lines: int) -> Iterator[str]:
    """A run of very many epochs: every event is one that both checkers have rules for."""
    yield from opening()
    blocks = lines // 26
    for block in range(blocks):
        yield mllog("block_start", START_MS, first_epoch_num=4 * block + 1, epoch_count=4)
        for epoch in range(4 * block + 1, 4 * block + 5):
            yield f"epoch {epoch}\n" * 3
            yield mllog("epoch_start", START_MS, epoch_num=epoch)
            yield mllog("epoch_stop", START_MS, epoch_num=epoch)
        yield from evaluation(4 * block + 4, 0.7604 if block == blocks - 1 else 0.5)
        yield mllog("block_stop", START_MS, first_epoch_num=4 * block + 1)
        yield "evaluated\n"
    yield mllog("run_stop", START_MS + 1, status="success")


def breaches(line: Callable[[int], str]) -> Callable[[int], Iterator[str]]:
    """A log of which every line after its opening breaks a rule."""

    def lines(count: int) -> Iterator[str]:
        yield from opening()
        yield from map(line, range(count))

    return lines


FAST = {
    "step_windows": step_windows,
    "epochs": epochs,
    "backwards": breaches(lambda i: mllog("epoch_start", START_MS - i, epoch_num=i)),
    "accuracy_no_number": breaches(lambda i: mllog("eval_accuracy", START_MS, "high", epoch_num=i)),
    "hyperparameter": breaches(lambda i: mllog("lars_opt_momentum", START_MS, 0.8)),
    "no_metadata": breaches(lambda i: mllog("eval_accuracy", START_MS, 0.5).replace('"metadata"', '"other"')),
}
PASSING = ("step_windows", "epochs")


def user_s(command: list[str], status: int) -> float:
    """User CPU time of `command`, which must end with `status`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    # pip wrote the official tool's bytecode when it was installed; a first run may write ours.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != status:
        raise SystemExit(f"{command}: status {done.returncode}, not {status}: {done.stdout}{done.stderr}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def compare(log: Path, repeats: int, ratio: Callable[[float, float], float], status: int = 0) -> dict[str, Any]:
    """`ratio`(official, ours) of alternating runs."""
    official = ["-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0"]
    commands = (
        [*official, "--log_output", f"{log}.official", str(log)],
        ["-m", "compliance", "check", "--verdict", "official", str(log)],
    )
    times: list[tuple[float, float]] = []
    for _ in range(repeats):
        one, other = (user_s([sys.executable, *command], status) for command in commands)
        times.append((one, other))
    ratios = [ratio(*pair) for pair in times]
    return {
        "official_s": statistics.median(one for one, _ in times),
        "ours_s": statistics.median(other for _, other in times),
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "repeats": repeats,
    }


def peak_mib(log: Path) -> float:
    """Peak resident memory of a process that checks `log` (VmHWM: ru_maxrss would include ours, before exec)."""
    code = (
        "import re, sys; from compliance.__main__ import main;"
        "status = main(['check', '--verdict', 'official', sys.argv[1]]);"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1];"
        "print(peak, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{log}: status {done.returncode}, a log that should pass: {done.stdout}{done.stderr}")
    return int(done.stderr) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small logs, one repeat: only checks that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    lines, many, repeats = (4_000, 20_000, 1) if options.short else (400_000, 5_000_000, 3)
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.txt"
        found: dict[str, Any] = {"lines": lines, "memory_lines": many}
        for name, make in FAST.items():
            with log.open("w") as stream:
                stream.writelines(make(lines))
            found[name] = compare(log, repeats, lambda official, ours: official / ours, int(name not in PASSING))
        with log.open("w") as stream:
            stream.writelines(epochs(300))
        found["small"] = compare(log, repeats * 4, lambda official, ours: ours / official)
        with log.open("w") as stream:
            stream.writelines(step_windows(many))
        found["memory_mib"] = peak_mib(log)
    found["met"] = options.short or (
        min(found[name]["ratio"] for name in FAST) >= LEAST_SPEEDUP
        and found["small"]["ratio"] <= MOST_SLOWDOWN
        and found["memory_mib"] < MOST_MEMORY_MIB
    )
    if options.json:
        print(json.dumps(found, indent=2))
        return 0 if found["met"] else 1
    for name, what, unit, wanted in (
        *((name, f"{lines} lines, {name}", "times as fast", f">= {LEAST_SPEEDUP}") for name in FAST),
        ("small", "one short run", "times the time", f"<= {MOST_SLOWDOWN}"),
    ):
        one = found[name]
        low, high = one["range"]
        print(
            f"{what}: official {one['official_s']:.3f} s, ours {one['ours_s']:.3f} s: {one['ratio']:.2f} {unit} "
            f"({low:.2f} to {high:.2f}, {one['repeats']} repeats; wanted {wanted})"
        )
    print(f"{many} lines: peak memory {found['memory_mib']:.1f} MiB (wanted < {MOST_MEMORY_MIB:g})")
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
