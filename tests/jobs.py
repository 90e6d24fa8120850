"""Starts real jobs for tests: by the user's command, or a script of a test on the ranks of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
# A job that takes seconds: a few steps at 32 x 32 pixels, a window each step, the same samples every time.
TINY = {
    "MODE": "throughput",
    "IMAGE_SIZE": "32",
    "WARMUP_STEPS": "1",
    "MEASURED_STEPS": "3",
    "PRINT_STEPS": "1",
    "SEED": "7",
    "CLEAR_CACHES": "0",
    "PROGRESS": "plain",
}
JOB_PREFIXES = ("JOB_", "OMPI_", "PMIX_", "PRTE_", "PADDLE_")


def environment(**variables: str | int) -> dict[str, str]:
    """This process's environment without what another job left in it, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(JOB_PREFIXES)}
    if os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept | {name: str(value) for name, value in variables.items()}


def run_and_time(
    *arguments: str, timeout_s: float = 300, cwd: Path = REPOSITORY, **variables: str | int
) -> subprocess.CompletedProcess[str]:
    """`./run_and_time.sh` as a user starts it."""
    return subprocess.run(
        [str(cwd / "run_and_time.sh"), *arguments],
        env=environment(**variables),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def on_ranks(
    ranks: int, *command: str, timeout_s: float = 300, **variables: str | int
) -> subprocess.CompletedProcess[str]:
    """A Python command (`-m module` or a script with arguments) on the ranks of a job on this machine."""
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("mpirun")),
            *("-n", str(ranks), "--bind-to", "none", "--map-by", f"ppr:{ranks}:node:OVERSUBSCRIBE"),
            *(sys.executable, *command),
        ],
        env=environment(DGXNGPU=ranks, PYTHONPATH=str(REPOSITORY), **variables),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def mllog(log: Path) -> list[dict[str, Any]]:
    """The MLLOG events of a log, read plainly and apart from the project's own reader."""
    lines = log.read_text().splitlines()
    return [json.loads(line.partition(":::MLLOG ")[2]) for line in lines if line.startswith(":::MLLOG ")]


def values(log: Path, key: str) -> list[Any]:
    """Values of the events of `key`, in order."""
    return [event["value"] for event in mllog(log) if event["key"] == key]


def losses(log: Path) -> list[float]:
    """Loss of each window."""
    return [window["loss"] for window in values(log, "step_window")]
