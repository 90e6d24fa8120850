"""The log of a real run of the default job before the official checker, whole and with each required event removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import jobs

# Every key that ruleset 4.0.0 requires of an open run of resnet.
REQUIRED = (
    "submission_benchmark",
    "submission_org",
    "submission_division",
    "submission_status",
    "submission_platform",
    "cache_clear",
    "init_start",
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
    "epoch_start",
    "epoch_stop",
    "eval_start",
    "eval_stop",
    "eval_accuracy",
    "block_start",
    "block_stop",
)
# The official rules are content with blocks in place of epochs and evaluations, or the other way round.
EITHER = ("epoch_start", "epoch_stop", "block_start", "block_stop", "eval_start", "eval_stop")

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


def official(log: Path) -> bool:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training"),
            *("--ruleset", "4.0.0", "--log_output", str(log.with_suffix(".out")), str(log)),
        ],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def ours(log: Path) -> bool:
    command = [sys.executable, "-m", "compliance", "check", str(log)]
    return subprocess.run(command, cwd=jobs.REPOSITORY, capture_output=True, check=False).returncode == 0


def test_both_checkers_pass_the_log(default_log: Path, tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(default_log.read_text())
    assert official(log)
    assert ours(log)


def without(log: Path, source: Path, *keys: str) -> Path:
    lines = source.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"key": "{key}"' in line for key in keys)]
    assert len(kept) < len(lines)
    log.write_text("".join(kept))
    return log


@pytest.mark.parametrize("key", REQUIRED)
def test_both_checkers_fail_the_log_without(key: str, default_log: Path, tmp_path: Path) -> None:
    log = without(tmp_path / "result_0.txt", default_log, key)
    assert not ours(log)
    if key not in EITHER:
        assert not official(log)


@pytest.mark.parametrize("end", ["start", "stop"])
def test_both_checkers_fail_the_log_without_any_of_a_choice(end: str, default_log: Path, tmp_path: Path) -> None:
    keys = [key for key in EITHER if key.endswith(end)]
    log = without(tmp_path / "result_0.txt", default_log, *keys)
    assert not ours(log)
    assert not official(log)


def test_the_default_reaches_its_target_in_time(default_log: Path) -> None:
    assert jobs.values(default_log, "eval_accuracy")[-1] >= 0.90
    events = jobs.mllog(default_log)
    start, stop = (next(e for e in events if e["key"] == key) for key in ("run_start", "run_stop"))
    assert stop["metadata"]["status"] == "success"
    config = next(
        json.loads(line[2:])["config"]
        for line in default_log.read_text().splitlines()
        if line.startswith('# {"config"')
    )
    assert config["RECIPE.target_top1"]["value"] == 0.90
    assert start["time_ms"] < stop["time_ms"]
