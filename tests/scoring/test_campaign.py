"""Campaigns: each report's grid, what is skipped and resumed, and the table at the end; `launch/campaign.sh`."""

import json
import math
import os
import re
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from program import strategy
from scoring.figure import protocols
from scoring.figure.calibration import calibration
from scoring.published import campaign, tables
from scoring.published import plan as campaigns
from scoring.published.table import select
from tests import jobs, make_log
from tests.jobs import called, refused

NAMES = ["dlperf", "perf_rn50", "fleetx", "perf_hrnet", "oneflow"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Four nodes of 8 V100."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", "a,b,c,d")
    monkeypatch.setenv("DGXSYSTEM", "DGX1")
    monkeypatch.delenv("CONT", raising=False)
    have(tmp_path, 8, "7.0")
    return monkeypatch


def have(folder: Path, gpus: int, capability: str) -> None:
    """An nvidia-smi as it prints; a driver before 510 refuses the field compute_cap."""
    answer = f"value='{capability}'" if capability else "echo 'is not a valid field to query.'; exit 2"
    jobs.script(
        folder / "nvidia-smi",
        f"#!/bin/sh\ncase $1 in *compute_cap) {answer};; *) value=V100;; esac\n"
        f"for gpu in $(seq {gpus}); do echo $value; done\n",
    )


def command(*arguments: object) -> str:
    """What the command that succeeds prints."""
    done = called(campaign.main, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plan(name: str, results: Path, *, shrink: bool = False, repeats: int | None = None) -> list[campaigns.Job]:
    return campaigns.plan_jobs(campaigns.read_campaign(name, shrink=shrink, repeats=repeats), results)


# ---------------------------------------------------------------------------------------------- the grids


@pytest.mark.parametrize("name, cells", list(zip(NAMES, [6, 10, 26, 6, 12], strict=True)))
def test_a_campaign_has_a_cell_for_every_published_throughput_and_measures_as_its_protocol(
    name: str, cells: int
) -> None:
    of = campaigns.read_campaign(name)
    assert len(of.throughputs) == cells
    found = [tables.published_figure_by_framework(of, row, "throughput").values() for row in of.throughputs]
    report = [row.value for row in select(of.figures_of_report, metric="throughput")]
    assert sorted(figure for figures in found for figure in figures if figure) == sorted(report)
    protocol = protocols.find(name.replace("perf_rn50", "perf").replace("perf_hrnet", "perf-seg"))
    assert of.protocol == protocol
    steps = {key: int(value) for key, value in of.environment.items() if key.endswith("_STEPS")}
    dropped = protocol.skip * (steps["PRINT_STEPS"] if protocol.skip_unit == "window" else 1)
    assert steps["WARMUP_STEPS"] == dropped and steps["MEASURED_STEPS"] % steps["PRINT_STEPS"] == 0
    assert protocol.take_steps in (None, steps["MEASURED_STEPS"]) and of.environment["DATA"] == "real"
    for throughput in of.throughputs:
        tiny = campaigns.Run(1, min(throughput.devices or 0, 2), 2, "fp32", throughput.strategy)
        assert campaigns.run_that_repeats(throughput, shrink=True) == tiny


# ------------------------------------------------------------------------------------------------ the plan


NODES = "nodes needed, HOSTS or HOSTFILE names"


@pytest.mark.parametrize(
    "name, gpus, capability, hosts, run, reason",
    [
        ("perf_rn50", 8, "7.0", "a,b c d", "4n8g_b256_amp_o2", ""),
        ("perf_rn50", 8, "7.0", "a,b,c,d", "1n8g_b256_tf32", "tf32 needs compute capability 8.0, V100 has 7.0"),
        ("perf_rn50", 8, "", "", "1n8g_b256_tf32", ""),
        ("perf_rn50", 8, "[N/A]", "", "1n8g_b256_tf32", ""),
        ("fleetx", 8, "7.0", "a,b,c", "4n8g_b32_amp_o1", f"4 {NODES} 3"),
        ("dlperf", 4, "7.0", "", "1n4g_b128_fp32", ""),
        ("dlperf", 4, "7.0", "", "1n8g_b128_fp32", "8 GPU(s) a node needed, 4 here"),
        ("fleetx", 8, "7.0", "a,b", "1n8g_b32_amp_o1_auto", ""),
        ("fleetx", 8, "7.0", "a,b", "2n8g_b32_amp_o1_auto", "automatic mode shards over 8 ranks and refuses 16"),
        ("fleetx --shrink", 0, "", "", "1n2g_b2_fp32_auto", "computes in FP16, for which a CPU has no kernels"),
        ("fleetx --shrink", 0, "", "", "1n2g_b2_fp32", ""),
    ],
)
def test_what_the_machine_cannot_do_is_skipped_with_the_reason(
    here: pytest.MonkeyPatch, tmp_path: Path, name: str, gpus: int, capability: str, hosts: str, run: str, reason: str
) -> None:
    have(tmp_path, gpus, capability)
    here.setenv("HOSTS", hosts)
    jobs = plan(name.split()[0], tmp_path, shrink="--shrink" in name, repeats=1)
    (job,) = (job for job in jobs if job.run.name == run)
    assert job.skipped.endswith(reason) and bool(job.skipped) == bool(reason) and job.missing == {1: ""}


def test_the_automatic_strategys_ranks_are_the_programs() -> None:
    assert campaigns.AUTO_RANKS == strategy.AUTO_RANKS  # scoring imports nothing of the program


def test_a_job_exports_what_the_report_says_and_is_started_where_its_nodes_are(
    here: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here.setattr(campaigns, "REPOSITORY", tmp_path)
    (tmp_path / "config_2xDGX1.sh").touch()

    def jobs(*options: str) -> dict[str, list[str]]:
        """What `plan fleetx --jobs` says of the first trial of each run: its command and its exports."""
        said = command("plan", "fleetx", "--results", tmp_path, "--jobs", *options)
        lines = [line.split("\t") for line in said.splitlines()]
        assert all(Path(folder).parts[-2:] == (name, f"trial_{trial}") for name, trial, folder, _, _ in lines)
        return {name: [command, *exports.split()] for name, trial, _, command, exports in lines if trial == "1"}

    bare = jobs()
    said = "WORKLOAD=rn50 MODE=throughput NEXP=1 DGXNNODES=1 DGXNGPU=8 BATCHSIZE=64 PRECISION=amp_o1 DEVICE=gpu"
    steps = "DATA=real RECIPE=paddleclas_piecewise PRINT_STEPS=10 MEASURED_STEPS=100 WARMUP_STEPS=20"
    auto = bare["1n8g_b64_amp_o1_auto"]
    assert auto == ["./run_and_time.sh", *said.split(), *steps.split(), "DGXSYSTEM=DGX1", "STRATEGY=auto"]
    two, four = bare["2n8g_b32_fp32"], bare["4n8g_b32_amp_o1"]
    assert two[0] == "launch/mpirun.sh --hosts a,b --no-container" and two[-1] == "DGXSYSTEM=2xDGX1"
    assert four[0] == "launch/mpirun.sh --hosts a,b,c,d --no-container" and four[-1] == "DGXSYSTEM=DGX1"
    here.setenv("CONT", "image")
    here.setenv("DGXSYSTEM", "4xDGX1")
    boxed = jobs()
    one = boxed["1n8g_b32_fp32"]
    assert (one[0], one[-1]) == ("launch/container_node.sh", "DGXSYSTEM=DGX1")
    assert boxed["2n8g_b32_fp32"][0] == "launch/mpirun.sh --hosts a,b"
    small = jobs("--shrink", "--runner", "mine")["1n2g_b2_fp32"]
    assert small[0] == "mine" and {"DGXSYSTEM=CPU", "DEVICE=cpu"} <= set(small)
    here.delenv("DGXSYSTEM")  # without it the CPU's config would be taken
    refused(called(campaign.main, "plan", "dlperf", "--results", tmp_path, "--jobs"), "DGXSYSTEM is not set")


# ----------------------------------------------------------------------------------------- logs and figures


def write_log(folder: Path, exports: dict[str, str], *, step_time_s: float, status: str | None = "success") -> Path:
    """A log as a job of `exports` would write it, every step of the same time, and thrice that in the warm-up."""
    said: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in exports.items()}
    nodes, warm_up = said["DGXNNODES"], said["WARMUP_STEPS"]
    times = [3 * step_time_s] * warm_up + [step_time_s] * said["MEASURED_STEPS"]
    devices, batch = nodes * said["DGXNGPU"], said["BATCHSIZE"]
    run = make_log.run_of(times, share=0, devices=devices, batch=batch, every=said["PRINT_STEPS"])
    of_log: dict[str, Any] = {"mode": "throughput", "warm_up": warm_up, "nodes": nodes, "precision": said["PRECISION"]}
    text = make_log.mllog(run, status=status or "", **of_log)
    config = {name: {"value": value, "origin": "environment"} for name, value in said.items()}
    text = f"# {json.dumps({'config': config})}\n{text}".replace('"gpu_memory_mib": null', '"gpu_memory_mib": 12000')
    if status is None:
        text = text[: text.rindex("\n", 0, text.index('"run_stop"')) + 1]
    path = folder / "X" / "rn50" / "result_0.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def measured(name: str, results: Path, times_s: dict[str, list[float]]) -> list[dict]:
    """The table of a campaign whose runs took these step times, one for each trial."""
    for job in plan(name, results):
        for trial, step_time_s in enumerate(times_s.get(job.run.name, []), 1):
            write_log(job.folder / f"trial_{trial}", job.exports, step_time_s=step_time_s)
    command("table", name, "--results", results)
    rows: list[dict] = json.loads((results / f"{name}.json").read_text())["rows"]
    return rows


def test_the_table_sets_ours_beside_the_published(here: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = [0.350, 0.352, 0.354, 0.350, 0.352, 0.354]
    lines = measured("dlperf", tmp_path, {"1n1g_b128_fp32": one, "1n8g_b128_fp32": [0.400] * 6})
    first, last = lines[0], lines[3]
    rates = [128 / step for step in one]
    assert first["ours"] == pytest.approx(sum(rates) / 6, rel=1e-3)
    assert first["published"] == {"Paddle 1.8.3.post107": 352.23, "OneFlow v0.1.8": 383.76}
    assert first["ratio"] == pytest.approx(first["ours"] / 352.23)
    low, high = first["interval_95"]
    # t of 5 degrees of freedom is 2.571; the spread of the six rates over sqrt(6).
    deviation = (sum((rate - first["ours"]) ** 2 for rate in rates) / 5) ** 0.5
    assert (high - low) / 2 == pytest.approx(2.571 * deviation / 6**0.5, rel=0.02)
    assert first["ratio_95"] == [pytest.approx(low / 352.23), pytest.approx(high / 352.23)]
    assert last["speedup"] == pytest.approx(last["ours"] / first["ours"])
    assert last["speedup_published"] == {"Paddle 1.8.3.post107": 7.47, "OneFlow v0.1.8": 7.67}
    assert (first["runs"], lines[1]["runs"], lines[1]["ours"], lines[1]["ratio"]) == (6, 0, None, None)


def test_the_markdown_shows_each_row_and_says_what_was_not_measured(here: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The warm-up steps are three times as slow: any of them left in would show in the figure.

    So few windows of one run have no interval.
    """
    (line,) = [line for line in measured("oneflow", tmp_path, {"1n1g_b160_fp32": [0.4]}) if line["runs"]]
    assert line["ours"] == pytest.approx(160 / 0.4)
    assert (line["gpu_memory_mib"], line["gpu_memory_mib_published"]) == (12000, 15509)
    text = (tmp_path / "oneflow.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "ratio" not in line and "--" not in line]
    assert len(rows) == 12 and len({len(line) for line in text.split("## ")[1].splitlines() if "|" in line}) == 1
    shown = [[cell.strip() for cell in row.split("|")] for row in (rows[6], rows[0])]
    assert shown[0][1:10] == ["1", "1", "160", "400", "-", "1", "382.324", "1.04623", "-"]
    assert "- [1]: not run yet" in text and shown[1][4:8] == ["not measured", "-", "0", "383.760"]


def test_a_published_figure_that_its_own_log_does_not_bear_out_says_so_at_its_cell(
    here: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ratio is to what the publisher's log gives; the note is at the cell, and the log's value in it."""
    have(tmp_path, 8, "8.0")
    lines = measured("perf_rn50", tmp_path, {"1n8g_b256_tf32": [2048 / 4390], "1n8g_b256_amp_o2": [0.5]})
    by_run = {(line["table"], line["devices"]): line for line in lines}
    line = by_run["A100 tf32", 8]
    assert line["published"]["Paddle"] == 5333.558 and line["log_value"]["Paddle"] == 4390
    assert line["ratio"] == pytest.approx(1)
    low, high = line["ratio_95"]
    least_shares = {width.least_share for width in calibration().run["rows"]}
    assert low * high == pytest.approx(1)
    assert round(math.log(high / low) / 2, 6) in least_shares, "even windows have the least width"
    assert any(note.startswith("published throughput 5333.558: its own log gives 4390: ") for note in line["notes"])
    assert by_run["A100 amp_o2", 8]["log_value"]["Paddle"] is None
    text = (tmp_path / "perf_rn50.md").read_text()
    number = re.search(r"- (\[\d+\]): published throughput 5333\.558", text)
    assert number and f"5333.558 (log: 4390) {number[1]}" in text and "ratio: against 4390" in text
    assert "1438.518 (log: 1434.8) [" in text and "389.54 (log: 389.54) [" in text


def test_a_cell_says_why_it_has_no_figure_or_not_the_protocols(here: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = measured("fleetx", tmp_path, {"2n8g_b64_fp32": [0.2, 0.2]})
    by_shape = {(line["table"], line["nodes"], line["batch_per_device"]): line for line in lines}
    two, eight = by_shape["V100 fp32", 2, 64], by_shape["V100 amp_o1 auto", 8, 32]
    assert two["runs"] == 2 and any("asks for 7 runs, given 2" in note for note in two["notes"])
    assert eight["ours"] is None and "shards over 8 ranks and refuses 64" in eight["notes"][0]
    assert "Paddle 2.6.2's automatic mode is not that of the report" in (tmp_path / "fleetx.md").read_text()


def test_a_dry_run_has_a_line_a_run(here: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = plan("fleetx", tmp_path)[0]
    write_log(job.folder / "trial_1", job.exports, step_time_s=0.1)
    lines = command("plan", "fleetx", "--results", tmp_path).splitlines()
    assert len(lines) == 26 + 26 + 1  # each run with its command or why it is skipped; the sum
    seconds = 60 + 120 * 32 * 8 / 2097.2  # start-up, and steps at the published rate
    by = "2097.20 images/s of batch 32 x 8 V100 (FleetX ResNet50 benchmark)"
    assert lines[0] == f"run  1n8g_b32_fp32: 1 done, 6 missing, about {seconds:.0f} s each by {by}"
    assert "DGXNGPU=8 BATCHSIZE=32" in lines[1] and lines[1].endswith("/trial_N ./run_and_time.sh")
    (at,) = (at for at, line in enumerate(lines) if line.startswith("skip 8n8g_b32_amp_o1_auto: 0 done, 7 missing, "))
    assert lines[at + 1].strip().startswith("strategy auto: ")
    assert lines[-1].startswith("fleetx: 182 trials, 1 done, ")
    lines = command("plan", "fleetx", "--results", tmp_path, "--repeats", 1).splitlines()
    assert lines[0].startswith("done 1n8g_b32_fp32: 1 done, 0 missing")
    assert lines[-1].startswith("fleetx: 26 trials, 1 done, ")


def test_a_log_of_a_call_that_made_several_runs_counts(tmp_path: Path) -> None:
    job = plan("dlperf", tmp_path)[0]
    write_log(job.folder / "trial_1", job.exports | {"NEXP": "5"}, step_time_s=0.35)
    assert len(plan("dlperf", tmp_path)[0].done) == 1


@pytest.mark.parametrize(
    "change, status, text",
    [
        ({"BATCHSIZE": "64"}, "success", "BATCHSIZE=64, the campaign wants 128"),
        ({"PRECISION": "tf32"}, "success", "PRECISION=tf32"),
        ({"MODE": "train"}, "success", "MODE=train"),
        ({}, "aborted", "run_stop says aborted"),
        ({}, None, "run_stop says nothing"),
    ],
)
def test_a_log_of_another_job_or_unfinished_does_not_count(
    tmp_path: Path, change: dict, status: str | None, text: str
) -> None:
    job = plan("dlperf", tmp_path)[0]
    log = write_log(job.folder / "trial_1", job.exports | change, step_time_s=0.35, status=status)
    job = plan("dlperf", tmp_path)[0]
    assert not job.done and text in job.missing[1]
    log.with_name("result_1.txt").write_text(log.read_text())
    assert plan("dlperf", tmp_path)[0].missing[1] == "2 log(s), a trial has one"
    for path in (log, log.with_name("result_1.txt")):
        path.unlink()
    assert plan("dlperf", tmp_path)[0].missing[1] == "no log(s), a trial has one"


@pytest.mark.parametrize("config", ["[]", "null", '{"WORKLOAD": "rn50"}'])
def test_a_log_whose_settings_are_no_table_does_not_count(tmp_path: Path, config: str) -> None:
    job = plan("dlperf", tmp_path)[0]
    log = write_log(job.folder / "trial_1", job.exports, step_time_s=0.35)
    log.write_text(re.sub(r'(?m)^# \{"config": .*$', f'# {{"config": {config}}}', log.read_text()))
    assert "its configuration has WORKLOAD=None, the campaign wants " in plan("dlperf", tmp_path)[0].missing[1]


# ----------------------------------------------------------------------------------------------- the launcher

CAMPAIGN_SH = str(jobs.REPOSITORY / "launch" / "campaign.sh")


# Two jobs, of one rank and of two: those of perf_rn50 are the same as dlperf's.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "names",
    [pytest.param(NAMES[:2], marks=[pytest.mark.slow, pytest.mark.ci]), pytest.param(NAMES, marks=pytest.mark.slow)],
)
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
    runner = jobs.script(tmp_path / "runner.py", RUNNER)
    places = {"LOGDIR": tmp_path / "results", "RUNNER": runner, "CALLS": tmp_path / "calls"}
    return {name: str(path) for name, path in places.items()} | {"RUNNER_DOES": ""}


def campaign_sh(own: dict[str, Any], *arguments: str, **variables: Any) -> CompletedProcess[str]:
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


@pytest.mark.slow
@pytest.mark.ci
def test_a_stopped_campaign_goes_on_where_it_was(own: dict[str, Any], tmp_path: Path) -> None:
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
    jobs.script(tmp_path / "nvidia-smi", "#!/bin/sh\nprintf '%s\\n' 7.0 7.0 7.0 7.0 7.0 7.0 7.0 7.0\n")
    here = {"HOSTFILE": str(tmp_path / "hosts"), "RUNNER": "", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = campaign_sh(own, "oneflow", "--dry-run", **here)
    assert done.returncode == 0, done.stderr
    assert "DGXNNODES=4 DGXNGPU=8 BATCHSIZE=160" in done.stdout
    assert "launch/mpirun.sh --hosts a,b,c,d" in done.stdout
    assert "oneflow: 12 trials" in done.stdout and "assumed" in done.stdout
    shrunk = campaign_sh(own, "dlperf", "--shrink", "--dry-run").stdout
    assert "2 to run in about 1 min" in shrunk  # 30 s, which were "about 0 min"
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
    refused(campaign_sh(own, *arguments), text)


@pytest.mark.parametrize("repeats", ["0", "-1", "2.5", "1000000000"])
def test_wrong_repeats_are_told_by_the_variable(own: dict[str, str], repeats: str) -> None:
    """The user was told of an option that launch/campaign.sh does not have."""
    refused(campaign_sh(own, "dlperf", "--dry-run", REPEATS=repeats), f"REPEATS={repeats}: must be a whole number")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nobody\n", "names no host"),
        ("-a\n", "must be names or IPv4 addresses"),
        ("a b # of the rack\n", "names several hosts in one line: give each a line of its own"),
    ],
)
def test_a_file_of_no_hosts_is_told_in_one_line(own: dict[str, str], tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "hosts").write_text(text)
    refused(campaign_sh(own, "dlperf", "--dry-run", HOSTFILE=str(tmp_path / "hosts")), said)
