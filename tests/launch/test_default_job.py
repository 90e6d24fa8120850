"""The log of a real run of the default job before both checkers, whole and with each required event removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compliance import rules
from compliance.check import check_file
from tests import jobs
from tests.compliance import official_checker

# Every key that ruleset 4.0.0 requires of an open run of resnet. The official rules are content with blocks in place of
# epochs and evaluations, or the other way round.
EITHER = ("epoch_start", "epoch_stop", "block_start", "block_stop", "eval_start", "eval_stop")
REQUIRED = (
    *(f"submission_{name}" for name in ("benchmark", "org", "division", "status", "platform")),
    *("cache_clear", "init_start", "init_stop", "run_start", "run_stop", "train_samples", "eval_samples"),
    *("eval_accuracy", *EITHER),
)

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


@pytest.mark.parametrize(
    "keys",
    [*((key,) for key in REQUIRED), *([key for key in EITHER if key.endswith(end)] for end in ("start", "stop"))],
    ids="-".join,
)
def test_both_checkers_fail_the_log_without(keys: tuple[str, ...], default_log: Path, tmp_path: Path) -> None:
    """A key; and all of those that begin, or end, a choice."""
    lines = default_log.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"key": "{key}"' in line for key in keys)]
    assert len(kept) < len(lines)
    log = tmp_path / "result_0.txt"
    log.write_text("".join(kept))
    findings, _ = check_file(log, rules.load("4.0.0"))
    assert any(finding.severity == "error" for finding in findings)
    if len(keys) > 1 or keys[0] not in EITHER:
        assert not official_checker.passes(log)


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
