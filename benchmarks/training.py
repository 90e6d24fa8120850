"""Throughput of our own training program on a CPU, started as the ranks of a job are."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import jobs


def rate(*, steps: int, warm_up: int, ranks: int = 1, **variables: Any) -> float:
    """Images/s of all `ranks` on synthetic data over `steps` steps after `warm_up`; `variables` are the job's."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "result.txt"
        done = jobs.on_ranks(
            ranks,
            *("-m", "harness"),
            MODE="throughput",
            DATA="synthetic",
            WARMUP_STEPS=warm_up,
            MEASURED_STEPS=steps,
            PRINT_STEPS=steps,
            CLEAR_CACHES=0,
            RESULT_FILE=log,
            **variables,
        )
        assert done.returncode == 0, done.stderr
        measured = jobs.values(log, "step_window")[-1]
        return float(measured["images"] / measured["time_s"])
