"""A third workload is a folder and a row: tests/third_workload/paddle_stripes and a row of runlog/workloads.json."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runlog import workloads
from tests import jobs

FOLDER = Path(__file__).parent / "third_workload" / "paddle_stripes"
pytestmark = pytest.mark.xdist_group("ranks")
ROW = {
    "name": "stripes",
    "benchmark": "stripes",
    "model": "stripes_net",
    "title": "the net of stripes",
    "family": "stripes",
    "metric": "right answers",
    "unit": "images",
    "train_samples": 512,
    "eval_samples": 96,
    "runs": 5,
    "flop_height": None,
    "flop_width": None,
    "training_flop": None,
    "recipes": {},
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of this one's files, but for the folder and the row."""
    top = jobs.checkout(tmp_path_factory.mktemp("third") / "checkout", "runlog")
    shutil.copytree(FOLDER, top / FOLDER.name)
    rows = top / "runlog" / "workloads.json"
    text = rows.read_text()
    rows.unlink()
    rows.write_text(json.dumps([*json.loads(text), ROW]))
    return top


@pytest.fixture(scope="module")
def trained(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The user's command on two ranks, and its log."""
    logdir = tmp_path_factory.mktemp("logs")
    job = {
        "WORKLOAD": "stripes",
        "BATCHSIZE": "8",
        "PRINT_STEPS": "4",
        "SEED": "5",
        "CLEAR_CACHES": "0",
        "PROGRESS": "plain",
    }
    job |= {"THREADS": "1", "LOGDIR": str(logdir), "DATA_CACHE": str(logdir / "data"), "DGXNGPU": "2"}
    done = jobs.run_and_time(cwd=checkout, **job)
    return done, logdir / "CPU/stripes/result_0.txt"


def rows_of(stdout: str) -> dict[str, str]:
    """The table that a job ends with, by the first word of its lines."""
    return {line.split()[0]: line for line in stdout.splitlines() if line}


def test_it_trains_to_its_target_and_its_log_passes_and_is_scored(trained: Any) -> None:
    done, log = trained
    assert done.returncode == 0, done.stderr + done.stdout
    assert "right answers" in rows_of(done.stdout)["quality"]
    assert "pass" in rows_of(done.stdout)["check"]
    assert jobs.values(log, "submission_benchmark") == ["stripes"]
    assert jobs.values(log, "run_summary")[0]["model"] == "stripes_net"
    assert jobs.values(log, "run_summary")[0]["devices"] == 2
    assert (log.parent / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (["compliance", "check", "{log}", "--json"], lambda out: out["files"][0]["verdict"] == "pass"),
        (["scoring", "score", "{log}", "--protocol", "window", "--json"], lambda out: out["value"] > 0),
        (["scoring", "report", "{log}", "--json"], lambda out: "stripes_net" in json.dumps(out)),
    ],
    ids=["check", "score", "report"],
)
def test_each_command_takes_its_log(
    trained: Any, checkout: Path, arguments: list[str], holds: Callable[[Any], bool]
) -> None:
    _, log = trained
    words = [word.format(log=log) for word in arguments]
    done = jobs.run([sys.executable, "-m", *words], cwd=checkout)
    assert holds(json.loads(done.stdout)), done.stdout + done.stderr


def test_flops_are_known_of_the_counted_size_alone() -> None:
    hrnet = workloads.named("hrnet")
    assert hrnet.flop_of(512, 1024) == hrnet.training_flop
    assert hrnet.flop_of(512, 512) is None
    assert hrnet.flop_of(1024, 1024) is None


def test_it_is_refused_by_name_where_the_row_is_not(tmp_path: Path) -> None:
    done = jobs.run_and_time("--dry-run", WORKLOAD="stripes")
    jobs.refused(done, "WORKLOAD='stripes': must be one of rn50, hrnet")
