"""`launch/campaign.sh`: through the real trainer, shrunk, and with a runner in its place."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import jobs
from tests.scoring.test_campaign import NAMES

# ------------------------------------------------------------------------------------------ the real thing


def run_shrunk(repository: Path, results: Path, name: str, limit_s: float) -> list[dict]:
    """Rows of a campaign's table after `launch/campaign.sh NAME --shrink` with the project's own trainer."""
    started = subprocess.Popen(
        [repository / "launch" / "campaign.sh", name, "--shrink"],
        # A rank of a machine that has other work, too, may take minutes over its first step.
        env={**os.environ, "LOGDIR": str(results), "HANG_TIMEOUT_S": "900"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, err = started.communicate(timeout=limit_s)
    finally:
        if started.poll() is None:  # it hands the signal on to the run
            started.terminate()
            started.wait(jobs.LIMIT_S)
    assert started.returncode == 0, err
    saved = json.loads((results / "campaigns" / f"{name}-shrunk.json").read_text(encoding="utf-8"))
    return saved["rows"]


def every_cell_was_run(rows: list[dict]) -> None:
    """Each has a figure from one log; but a CPU cannot run Paddle's automatic strategy, and those rows say so."""
    for row in rows:
        if row["strategy"] == "auto":
            assert row["ours"] is None and "automatic mode computes in FP16" in row["notes"][0]
        else:
            assert row["ours"] > 0 and row["runs"] == 1 and len(row["logs"]) == 1


# Two jobs, of one rank and of two: those of perf_rn50 are the same as dlperf's.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("names", [NAMES[:2], pytest.param(NAMES, marks=pytest.mark.slow)])
def test_campaigns_run_shrunk_through_the_real_trainer(repository: Path, tmp_path: Path, names: list[str]) -> None:
    for name in names:
        every_cell_was_run(run_shrunk(repository, tmp_path, name, 1700))
    assert len(list(tmp_path.glob("campaigns/shrunk_rn50/*/trial_1/**/result_0.txt"))) >= 2


# -------------------------------------------------------------------------------------------- the launcher

# In place of a training run: writes the log of its environment, or does what RUNNER_DOES says.
RUNNER = """
import importlib.util, json, os, sys, time
from pathlib import Path
folder = Path(os.environ["LOGDIR"])
with Path(os.environ["CALLS"]).open("a") as calls:
    calls.write(f"{folder.parent.name}\\n")
does = os.environ.get("RUNNER_DOES", "")
if does == "fail" and os.environ["DGXNGPU"] == "2":
    sys.exit("error: no memory")
sys.path.insert(0, os.environ["REPOSITORY"])
spec = importlib.util.spec_from_file_location("test_campaign", os.environ["LOG_WRITER"])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
stop = does == "hang" and os.environ["DGXNGPU"] == "2"
module.write_log(folder, dict(os.environ), step_time_s=0.1, status=None if stop else "success")
if stop:
    time.sleep(3600)
"""


@pytest.fixture
def campaign_sh(repository: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Starts launch/campaign.sh with the runner above; `.calls()` lists what it was called for."""
    if not (repository / ".venv" / "bin" / "python").exists():
        pytest.fail("no .venv: run launch/setup.sh run")
    runner = tmp_path / "runner.py"
    runner.write_text(f"#!{repository}/.venv/bin/python\n{RUNNER}")
    runner.chmod(0o755)

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        own = {"LOGDIR": str(tmp_path / "results"), "RUNNER": str(runner), "CALLS": str(tmp_path / "calls")}
        own |= {"LOG_WRITER": str(Path(__file__).with_name("test_campaign.py")), "REPOSITORY": str(repository)}
        return subprocess.Popen(
            [repository / "launch" / "campaign.sh", *arguments],
            env={**os.environ, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def calls() -> list[str]:
        path = tmp_path / "calls"
        return path.read_text().split() if path.exists() else []

    start.calls = calls  # type: ignore[attr-defined]
    return start


RUNS = ["1n1g_b2_fp32", "1n2g_b2_fp32"]


def test_a_campaign_runs_what_is_missing_and_nothing_twice(campaign_sh, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = campaign_sh("dlperf", "--shrink")
    out, err = first.communicate(timeout=jobs.LIMIT_S)
    assert first.returncode == 0, err
    assert campaign_sh.calls() == RUNS
    again = campaign_sh("dlperf", "--shrink")
    table, err = again.communicate(timeout=jobs.LIMIT_S)
    assert again.returncode == 0 and campaign_sh.calls() == RUNS
    assert table == out[out.index("# dlperf") :]
    saved = tmp_path / "results" / "campaigns" / "dlperf-shrunk"
    assert saved.with_suffix(".md").read_text() == table.rstrip("\n") + "\n"
    rows = json.loads(saved.with_suffix(".json").read_text())["rows"]
    # A run of two ranks of batch 2 at 0.1 s a step does 40 images/s, one of one rank 20.
    assert [round(row["ours"], 3) for row in rows] == [20.0, *[40.0] * 5]
    # perf_rn50 shrinks to the same jobs: none is left to do.
    other = campaign_sh("perf_rn50", "--shrink")
    table, err = other.communicate(timeout=jobs.LIMIT_S)
    assert other.returncode == 0 and campaign_sh.calls() == RUNS and "A100-AMP" in table


def test_a_failed_run_is_said_and_repeated(campaign_sh, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = campaign_sh("dlperf", "--shrink", RUNNER_DOES="fail")
    out, err = first.communicate(timeout=jobs.LIMIT_S)
    assert first.returncode == 1 and "error: no memory" in err
    assert "no log" in out
    second = campaign_sh("dlperf", "--shrink")
    second.communicate(timeout=jobs.LIMIT_S)
    assert second.returncode == 0 and campaign_sh.calls() == [*RUNS, RUNS[1]]
    kept = tmp_path / "results" / "campaigns" / "shrunk_rn50" / RUNS[1] / "trial_1.stopped_1" / "run.out"
    assert "no memory" in kept.read_text()


def test_a_stopped_campaign_goes_on_where_it_was(campaign_sh, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = campaign_sh("dlperf", "--shrink", RUNNER_DOES="hang")
    folder = tmp_path / "results" / "campaigns" / "shrunk_rn50" / RUNS[1]
    jobs.until(lambda: bool(list(folder.glob("trial_1/**/result_0.txt"))), first)
    busy = campaign_sh("dlperf", "--shrink")
    _, err = busy.communicate(timeout=jobs.LIMIT_S)
    assert busy.returncode == 2 and "another campaign.sh is at work" in err
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=jobs.LIMIT_S)
    assert first.returncode == 130 and "start it again" in err
    second = campaign_sh("dlperf", "--shrink")
    second.communicate(timeout=jobs.LIMIT_S)
    assert second.returncode == 0 and campaign_sh.calls() == [*RUNS, RUNS[1]]
    assert (folder / "trial_1.stopped_1").is_dir() and (folder / "trial_1").is_dir()


def test_a_dry_run_lists_commands_and_time_and_runs_nothing(campaign_sh, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "hosts").write_text("# mine\na slots=8\n\nb\nc\nd\n")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '%s\\n' 7.0 7.0 7.0 7.0 7.0 7.0 7.0 7.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = campaign_sh("oneflow", "--dry-run", HOSTFILE=str(tmp_path / "hosts"), RUNNER="", PATH=path)
    out, err = done.communicate(timeout=jobs.LIMIT_S)
    assert done.returncode == 0, err
    assert "DGXNNODES=4 DGXNGPU=8 BATCHSIZE=160" in out and "launch/mpirun.sh --hosts a,b,c,d" in out
    assert "oneflow: 12 jobs" in out and "assumed" in out
    assert campaign_sh.calls() == [] and not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "which campaign"),
        (["absent"], "choose one of"),
        (["--fast", "dlperf"], "--fast"),
        (["a", "b"], "one campaign"),
    ],
)
def test_wrong_use_is_told_in_one_line(campaign_sh, arguments: list[str], text: str) -> None:  # type: ignore[no-untyped-def]
    done = campaign_sh(*arguments)
    _, err = done.communicate(timeout=jobs.LIMIT_S)
    assert done.returncode == 2 and text in err and err.count("\n") == 1
