"""The log of a real run of the default job before both checkers, whole and with each required event removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import jobs

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.xdist_group("ranks")]


@pytest.fixture(scope="module")
def default_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log of a default run: the one that DEFAULT_LOG names, or that of a run made now (minutes)."""
    if "DEFAULT_LOG" in os.environ:
        return Path(os.environ["DEFAULT_LOG"])
    folder = tmp_path_factory.mktemp("results")
    done = jobs.run_and_time(LOGDIR=str(folder), timeout_s=900)
    assert done.returncode == 0, done.stderr
    return folder / "CPU/rn50/result_0.txt"


def test_both_checkers_pass_the_log(default_log: Path, tmp_path: Path) -> None:
    """By their commands."""
    checker = ("-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0")
    official = [sys.executable, *checker, "--log_output", str(tmp_path / "official.out"), str(default_log)]
    assert subprocess.run(official, capture_output=True, check=False).returncode == 0
    assert jobs.checked(default_log)[0] == 0


def test_the_default_reaches_its_target_in_time(default_log: Path) -> None:
    assert jobs.values(default_log, "eval_accuracy")[-1] >= 0.90
    start, stop = (event for event in jobs.mllog(default_log) if event["key"] in ("run_start", "run_stop"))
    assert stop["metadata"]["status"] == "success" and start["time_ms"] < stop["time_ms"]
    (config,) = (line for line in default_log.read_text().splitlines() if line.startswith('# {"config"'))
    assert json.loads(config[2:])["config"]["RECIPE.target_top1"]["value"] == 0.90
