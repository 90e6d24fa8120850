"""`launch/campaign.sh`: through the real trainer, shrunk, and with a runner in its place."""

import json
import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests import jobs
from tests.scoring.test_campaign import NAMES

CAMPAIGN_SH = str(jobs.REPOSITORY / "launch" / "campaign.sh")


# Two jobs, of one rank and of two: those of perf_rn50 are the same as dlperf's.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("names", [NAMES[:2], pytest.param(NAMES, marks=pytest.mark.slow)])
def test_campaigns_run_shrunk_through_the_real_trainer(tmp_path: Path, names: list[str]) -> None:
    """Each cell has a figure from one log; but a CPU cannot run Paddle's automatic strategy, and those rows say so."""
    for name in names:
        # A rank of a machine that has other work, too, may take minutes over its first step.
        done = jobs.run([CAMPAIGN_SH, name, "--shrink"], timeout_s=1700, LOGDIR=str(tmp_path), HANG_TIMEOUT_S="900")
        assert done.returncode == 0, done.stderr
        for row in json.loads((tmp_path / "campaigns" / f"{name}-shrunk.json").read_text())["rows"]:
            if row["strategy"] == "auto":
                assert row["ours"] is None and "automatic mode computes in FP16" in row["notes"][0]
            else:
                assert row["ours"] > 0 and row["runs"] == 1 and len(row["logs"]) == 1
    assert len(list(tmp_path.glob("campaigns/shrunk_rn50/*/trial_1/**/result_0.txt"))) >= 2


# -------------------------------------------------------------------------------------------- the launcher

# In place of a training run: writes the log of its environment, or does what RUNNER_DOES says.
RUNNER = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
folder = Path(os.environ["LOGDIR"])
with Path(os.environ["CALLS"]).open("a") as calls:
    calls.write(f"{{folder.parent.name}}\\n")
does = os.environ["RUNNER_DOES"] if os.environ["DGXNGPU"] == "2" else ""
if does == "fail":
    sys.exit("error: no memory")
sys.path.insert(0, {str(jobs.REPOSITORY)!r})
from tests.scoring.test_campaign import write_log
write_log(folder, dict(os.environ), step_time_s=0.1, status=None if does == "hang" else "success")
if does == "hang":
    time.sleep(3600)
"""
RUNS = ["1n1g_b2_fp32", "1n2g_b2_fp32"]


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """What launch/campaign.sh is started with, to call the runner above and to list the calls."""
    runner = tmp_path / "runner.py"
    runner.write_text(RUNNER)
    runner.chmod(0o755)
    places = {"LOGDIR": tmp_path / "results", "RUNNER": runner, "CALLS": tmp_path / "calls"}
    return {name: str(path) for name, path in places.items()} | {"RUNNER_DOES": ""}


def campaign_sh(own: dict[str, str], *arguments: str, **variables: str) -> CompletedProcess[str]:
    return jobs.run([CAMPAIGN_SH, *arguments], **(own | variables))


def calls(own: dict[str, str]) -> list[str]:
    return Path(own["CALLS"]).read_text().split()


def test_a_campaign_runs_what_is_missing_and_nothing_twice(own: dict[str, str], tmp_path: Path) -> None:
    first = campaign_sh(own, "dlperf", "--shrink")
    assert first.returncode == 0, first.stderr
    assert calls(own) == RUNS
    again = campaign_sh(own, "dlperf", "--shrink")
    assert again.returncode == 0 and calls(own) == RUNS
    assert again.stdout == first.stdout[first.stdout.index("# dlperf") :]
    saved = tmp_path / "results" / "campaigns" / "dlperf-shrunk"
    assert saved.with_suffix(".md").read_text() == again.stdout.rstrip("\n") + "\n"
    rows = json.loads(saved.with_suffix(".json").read_text())["rows"]
    # A run of two ranks of batch 2 at 0.1 s a step does 40 images/s, one of one rank 20.
    assert [round(row["ours"], 3) for row in rows] == [20.0, *[40.0] * 5]
    # perf_rn50 shrinks to the same jobs: none is left to do.
    other = campaign_sh(own, "perf_rn50", "--shrink")
    assert other.returncode == 0 and calls(own) == RUNS and "A100 amp_o2" in other.stdout


def test_a_failed_run_is_said_and_repeated(own: dict[str, str], tmp_path: Path) -> None:
    first = campaign_sh(own, "dlperf", "--shrink", RUNNER_DOES="fail")
    assert first.returncode == 1 and "error: no memory" in first.stderr and "no log" in first.stdout
    assert campaign_sh(own, "dlperf", "--shrink").returncode == 0 and calls(own) == [*RUNS, RUNS[1]]
    kept = tmp_path / "results" / "campaigns" / "shrunk_rn50" / RUNS[1] / "trial_1.stopped_1" / "run.out"
    assert "no memory" in kept.read_text()


def test_a_stopped_campaign_goes_on_where_it_was(own: dict[str, str], tmp_path: Path) -> None:
    first = jobs.begin([CAMPAIGN_SH, "dlperf", "--shrink"], **(own | {"RUNNER_DOES": "hang"}))
    folder = tmp_path / "results" / "campaigns" / "shrunk_rn50" / RUNS[1]
    jobs.until(lambda: bool(list(folder.glob("trial_1/**/result_0.txt"))), first)
    busy = campaign_sh(own, "dlperf", "--shrink")
    assert busy.returncode == 2 and "another campaign.sh is at work" in busy.stderr
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=jobs.LIMIT_S)
    assert first.returncode == 130 and "start it again" in err
    assert campaign_sh(own, "dlperf", "--shrink").returncode == 0 and calls(own) == [*RUNS, RUNS[1]]
    assert (folder / "trial_1.stopped_1").is_dir() and (folder / "trial_1").is_dir()


def test_a_dry_run_lists_commands_and_time_and_runs_nothing(own: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# mine\na slots=8\n\nb\nc\nd\n")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '%s\\n' 7.0 7.0 7.0 7.0 7.0 7.0 7.0 7.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    here = {"HOSTFILE": str(tmp_path / "hosts"), "RUNNER": "", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = campaign_sh(own, "oneflow", "--dry-run", **here)
    assert done.returncode == 0, done.stderr
    assert "DGXNNODES=4 DGXNGPU=8 BATCHSIZE=160" in done.stdout
    assert "launch/mpirun.sh --hosts a,b,c,d" in done.stdout
    assert "oneflow: 12 jobs" in done.stdout and "assumed" in done.stdout
    assert not Path(own["CALLS"]).exists() and not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "which campaign"),
        (["absent"], "choose one of"),
        (["--fast", "dlperf"], "--fast"),
        (["a", "b"], "one campaign"),
    ],
)
def test_wrong_use_is_told_in_one_line(own: dict[str, str], arguments: list[str], text: str) -> None:
    done = campaign_sh(own, *arguments)
    assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1
